// Superpixels, their statistics and boundaries. In one launch every pixel chooses among nine regions, and colours and positions
// are summed per region; the next launch divides. Sums are 64-bit integers, so every run gives the same bits.
#include "warp.cuh"

constexpr int TABLE = 6144;  // floats: the means of the regions that a tile's pixels choose among
constexpr double UNIT = 65536.0;
constexpr float LIMIT = 1000.f;

struct Segments {
    const float* features;       // (B, C, H, W)
    const long long* seeds;      // (B, R, C + 3): the sums over the seeds' own cells
    const long long* sums;       // (B, R, C + 3): of the previous pass; null in the first, which makes the seeds
    unsigned long long* totals;  // (B, R, C + 3): zero at the start; unused in the last pass
    int* ids;                    // (B, H, W): written in the last pass
    int channels, height, width, rows, columns;
    int stride_y, stride_x;      // every stride-th pixel takes part
    int pixels_y, pixels_x;      // how many take part
    int tile_rows;               // a multiple of 8
    float weight;
};

struct Pixel {
    int y, x, home_y, home_x;  // the pixel and its cell
};

__device__ __forceinline__ Pixel pixel_at(const Segments& job, int row, int column) {
    const int y = row * job.stride_y + job.stride_y / 2, x = column * job.stride_x + job.stride_x / 2;
    return {y, x, y * job.rows / job.height, x * job.columns / job.width};
}

// The first row and column of this block's tile, and its image.
struct Tile {
    int row, column, image;
};

__device__ __forceinline__ Tile tile_of(int rows, int pixels_y, int pixels_x) {
    const int across = (pixels_x + 31) / 32, down = (pixels_y + rows - 1) / rows;
    const int strip = blockIdx.x / across, image = strip / down;
    return {(strip - image * down) * rows, static_cast<int>(blockIdx.x - strip * across) * 32, image};
}

// The cells that a tile's pixels choose among: the first, and the number per row.
struct Cells {
    int y, x, across;
};

// Fills the table with the means of these cells' regions, C + 2 numbers each: colour, x, y.
__device__ Cells fill_table(const Segments& job, const Tile& tile, float* table) {
    const int last_row = min(tile.row + job.tile_rows, job.pixels_y) - 1, last_column = min(tile.column + 32, job.pixels_x) - 1;
    const Pixel first = pixel_at(job, tile.row, tile.column), last = pixel_at(job, last_row, last_column);
    const Cells cells = {max(first.home_y - 1, 0), max(first.home_x - 1, 0),
                         min(last.home_x + 1, job.columns - 1) - max(first.home_x - 1, 0) + 1};
    const int down = min(last.home_y + 1, job.rows - 1) - cells.y + 1, values = job.channels + 2;
    for (int i = threadIdx.x; i < down * cells.across * values; i += blockDim.x) {
        const int cell = i / values, value = i - cell * values, row = cell / cells.across;
        const int region = (cells.y + row) * job.columns + cells.x + cell - row * cells.across;
        const long long start = (static_cast<long long>(tile.image) * job.rows * job.columns + region) * (values + 1);
        const bool empty = job.sums[start + values] == 0;  // a region that lost all its pixels goes back to its seed
        const long long* from = (empty ? job.seeds : job.sums) + start;
        const double mean = static_cast<double>(from[value]) / static_cast<double>(from[values]);
        table[i] = static_cast<float>(value < job.channels ? mean / UNIT : mean);
    }
    __syncthreads();
    return cells;
}

__device__ __forceinline__ int neighbour(int home, int step, int cells) { return min(max(home + step, 0), cells - 1); }

// The nearest of nine regions. CHANNELS: the number of channels, 0 if only known at run time.
template <int CHANNELS>
__device__ __forceinline__ int nearest(const Segments& job, const Cells& cells, const float* table, const float* colour,
                                       const Pixel& pixel) {
    const int channels = CHANNELS ? CHANNELS : job.channels;
    const long long plane = static_cast<long long>(job.height) * job.width;
    int mean[9];  // where each one's mean starts in the table
    float cost[9];
#pragma unroll
    for (int i = 0; i < 9; ++i) {
        const int y = neighbour(pixel.home_y, i / 3 - 1, job.rows) - cells.y;
        const int x = neighbour(pixel.home_x, i % 3 - 1, job.columns) - cells.x;
        mean[i] = (y * cells.across + x) * (channels + 2);
        cost[i] = 0.f;
    }
#pragma unroll
    for (int channel = 0; channel < channels; ++channel) {
        const float value = __ldg(colour + channel * plane);
#pragma unroll
        for (int i = 0; i < 9; ++i) {
            const float difference = value - table[mean[i] + channel];
            cost[i] += difference * difference;
        }
    }
    float least = __int_as_float(0x7f800000);
    int chosen = 0;
#pragma unroll
    for (int i = 0; i < 9; ++i) {
        const float dx = pixel.x - table[mean[i] + channels], dy = pixel.y - table[mean[i] + channels + 1];
        const float total = cost[i] + job.weight * (dx * dx + dy * dy);
        if (total < least) least = total, chosen = i;
    }
    return neighbour(pixel.home_y, chosen / 3 - 1, job.rows) * job.columns +
           neighbour(pixel.home_x, chosen % 3 - 1, job.columns);
}

__device__ __forceinline__ int nearest_of(const Segments& job, const Cells& cells, const float* table,
                                          const float* colour, const Pixel& pixel) {
    return job.channels == 3 ? nearest<3>(job, cells, table, colour, pixel) : nearest<0>(job, cells, table, colour, pixel);
}

// Adds a warp's pixels to their regions, one region at a time. A lane without a pixel has id −1.
__device__ void add_up(const Segments& job, int image, int id, const float* colour, const Pixel& pixel) {
    const int lane = threadIdx.x & 31, channels = job.channels;
    const long long plane = static_cast<long long>(job.height) * job.width;
    unsigned waiting = __ballot_sync(~0u, id >= 0);
    while (waiting) {
        const int region = __shfl_sync(~0u, id, __ffs(waiting) - 1);
        waiting &= ~__ballot_sync(~0u, id == region);
        int kept = 0;
        for (int value = 0; value < channels + 3; ++value) {
            int mine = 0;
            if (id == region) {
                mine = value == channels ? pixel.x : value == channels + 1 ? pixel.y : 1;
                if (value < channels)
                    mine = __float2int_rn(fminf(fmaxf(__ldg(colour + value * plane), -LIMIT), LIMIT) * static_cast<float>(UNIT));
            }
            const int total = warp_sum(mine);
            if (lane == value) kept = total;
        }
        const long long start = (static_cast<long long>(image) * job.rows * job.columns + region) * (channels + 3);
        if (lane < channels + 3)
            atomicAdd(job.totals + start + lane, static_cast<unsigned long long>(static_cast<long long>(kept)));
    }
}

extern "C" __global__ void __launch_bounds__(256) superpixels_refine(const __grid_constant__ Segments job) {
    __shared__ float table[TABLE];
    const Tile tile = tile_of(job.tile_rows, job.pixels_y, job.pixels_x);
    const Cells cells = job.sums ? fill_table(job, tile, table) : Cells{0, 0, 0};
    const int column = tile.column + (threadIdx.x & 31);
    const bool inside = column < job.pixels_x;
    const float* image = job.features + static_cast<long long>(tile.image) * job.channels * job.height * job.width;
    for (int row = tile.row + (threadIdx.x >> 5); row < min(tile.row + job.tile_rows, job.pixels_y); row += 8) {
        const Pixel pixel = pixel_at(job, row, inside ? column : 0);
        const float* colour = image + static_cast<long long>(pixel.y) * job.width + pixel.x;
        int id = -1;
        if (inside)
            id = job.sums ? nearest_of(job, cells, table, colour, pixel) : pixel.home_y * job.columns + pixel.home_x;
        __syncwarp();
        add_up(job, tile.image, id, colour, pixel);
    }
}

extern "C" __global__ void __launch_bounds__(256) superpixels_assign(const __grid_constant__ Segments job) {
    __shared__ float table[TABLE];
    const Tile tile = tile_of(job.tile_rows, job.height, job.width);
    const Cells cells = fill_table(job, tile, table);
    const int x = tile.column + (threadIdx.x & 31);
    if (x >= job.width) return;
    const long long plane = static_cast<long long>(job.height) * job.width;
    const float* image = job.features + tile.image * job.channels * plane;
    int* ids = job.ids + tile.image * plane;
    for (int y = tile.row + (threadIdx.x >> 5); y < min(tile.row + job.tile_rows, job.height); y += 8) {
        const long long index = static_cast<long long>(y) * job.width + x;
        ids[index] = nearest_of(job, cells, table, image + index, pixel_at(job, y, x));
    }
}

struct Regions {
    const int* ids;            // (B, H, W)
    unsigned long long* sums;  // (B, R, 3): x, y and the number of pixels; zero at the start
    float* edges;              // (B, H, W)
    int height, width, regions;
};

// A thread adds up four pixels of a column, its warp 32 × 4.
extern "C" __global__ void __launch_bounds__(256) region_sums(const __grid_constant__ Regions job) {
    const Tile tile = tile_of(32, job.height, job.width);
    const int lane = threadIdx.x & 31, x = tile.column + lane, top = tile.row + (threadIdx.x >> 5) * 4;
    const int* ids = job.ids + static_cast<long long>(tile.image) * job.height * job.width;
    int id[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        id[i] = -1;
        if (x < job.width && top + i < job.height) id[i] = __ldg(ids + static_cast<long long>(top + i) * job.width + x);
        if (id[i] >= job.regions) id[i] = -1;
    }
    while (true) {
        int next = -1;
#pragma unroll
        for (int i = 0; i < 4; ++i)
            if (id[i] >= 0) next = id[i];
        const unsigned waiting = __ballot_sync(~0u, next >= 0);
        if (!waiting) return;
        const int region = __shfl_sync(~0u, next, __ffs(waiting) - 1);
        int count = 0, sum_y = 0;
#pragma unroll
        for (int i = 0; i < 4; ++i)
            if (id[i] == region) ++count, sum_y += top + i, id[i] = -1;
        const int total_x = warp_sum(count * x), total_y = warp_sum(sum_y);
        const int total = warp_sum(count);
        const long long start = (static_cast<long long>(tile.image) * job.regions + region) * 3;
        if (lane < 3)
            atomicAdd(job.sums + start + lane, static_cast<unsigned long long>(lane == 0 ? total_x : lane == 1 ? total_y : total));
    }
}

extern "C" __global__ void __launch_bounds__(256) boundaries(const __grid_constant__ Regions job) {
    const Tile tile = tile_of(32, job.height, job.width);
    const int x = tile.column + (threadIdx.x & 31), top = tile.row + (threadIdx.x >> 5) * 4;
    const long long start = (static_cast<long long>(tile.image) * job.height + top) * job.width + x;
    if (x >= job.width || top >= job.height) return;
    const int* ids = job.ids + start;
    int here = __ldg(ids);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        if (top + i >= job.height) return;
        const long long line = static_cast<long long>(i) * job.width;
        const int right = x + 1 < job.width ? __ldg(ids + line + 1) : here;
        const int below = top + i + 1 < job.height ? __ldg(ids + line + job.width) : here;
        job.edges[start + line] = right != here || below != here ? 1.f : 0.f;
        here = below;
    }
}

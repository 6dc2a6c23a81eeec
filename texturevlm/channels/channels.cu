// Layers that depend on a pixel and its neighbourhood, each written to its channel of (B, C, H, W):
//   channels_near:    from the pixel and the window around it, reading the image once
//   channels_regions: from superpixels
// Constants are those of texturevlm/channels.
#include "layers.cuh"
#include "marks.cuh"

constexpr int SURROUND = 17, DETAIL = 5;
constexpr float NOISE = 2.5f / 255.f, EDGE_THRESHOLD = 0.3f;

enum NearSlot { RED, GREEN, BLUE, X, Y, ECCENTRICITY, EDGES, EDGES_INVERTED, HIGH_PASS, MOTION,
                SALIENCY_BEFORE, ATTENTION_BEFORE, NEAR_SLOTS };

struct Near {
    Layers layers;
    Layers before;       // of the last frame
    Marks marks;         // only what changed is updated
    const float* image;  // (B, 3, H, W)
    unsigned* edges;     // (B, H, ⌈W / 32⌉): one bit per pixel that is an edge; null: not wanted
    unsigned zero[2];    // one bit per layer that becomes zero
    int slot[NEAR_SLOTS];
    int before_slot[5];  // of the last frame's red, green, blue, saliency and attention; −1: zero
    int windows;         // whether windows are needed
    float diagonal;
};

constexpr int NEAR_TILE = 32, NEAR_REACH = SURROUND / 2, SEEN = NEAR_TILE + 2 * NEAR_REACH, RUN = 8, ROWS = 4;
constexpr int SEEN_PITCH = SEEN + 1, SUM_PITCH = NEAR_TILE + 1;  // odd, so that 32 rows lie in 32 banks

struct Windows {
    float grey[SEEN * SEEN_PITCH];  // minus `ground`, so that the squares of nearly equal tones do not cancel
    float sum[SEEN * SUM_PITCH], squares[SEEN * SUM_PITCH];  // over SURROUND pixels of a row

    __device__ void fill(const Near& job, const Tile& tile, const float* image, float ground) {
        const int height = job.layers.height, width = job.layers.width;
        for (int i = threadIdx.x; i < SEEN * SEEN; i += 256) {
            const int row = i / SEEN, column = i - row * SEEN;
            const int y = inside(tile.y - NEAR_REACH + row, height), x = inside(tile.x - NEAR_REACH + column, width);
            grey[row * SEEN_PITCH + column] = luma(image, job.layers.plane(), y * width + x) - ground;
        }
        __syncthreads();
        const int row = threadIdx.x % SEEN, start = threadIdx.x / SEEN * RUN;  // a thread sums RUN windows of a row
        if (start < NEAR_TILE) {
            const float* from = grey + row * SEEN_PITCH + start;
            float total = 0.f, square = 0.f;
#pragma unroll
            for (int i = 0; i < SURROUND; ++i) total += from[i], square += from[i] * from[i];
#pragma unroll
            for (int i = 0; i < RUN; ++i) {
                sum[row * SUM_PITCH + start + i] = total, squares[row * SUM_PITCH + start + i] = square;
                if (i + 1 < RUN) {
                    const float in = from[SURROUND + i], out = from[i];
                    total += in - out, square += in * in - out * out;
                }
            }
        }
        __syncthreads();
    }

    // For ROWS pixels from `row` down: the surround's mean minus the pixel, and the surround's variance.
    __device__ void surround(int row, int column, float* darker, float* variance) const {
        float total = 0.f, square = 0.f;
        const float *totals = sum + row * SUM_PITCH + column, *powers = squares + row * SUM_PITCH + column;
#pragma unroll
        for (int i = 0; i < SURROUND; ++i) total += totals[i * SUM_PITCH], square += powers[i * SUM_PITCH];
#pragma unroll
        for (int i = 0; i < ROWS; ++i) {
            const float mean = total * (1.f / (SURROUND * SURROUND));
            darker[i] = mean - grey[(row + i + NEAR_REACH) * SEEN_PITCH + column + NEAR_REACH];
            variance[i] = fmaxf(square * (1.f / (SURROUND * SURROUND)) - mean * mean, 0.f);
            if (i + 1 < ROWS) {
                total += totals[(SURROUND + i) * SUM_PITCH] - totals[i * SUM_PITCH];
                square += powers[(SURROUND + i) * SUM_PITCH] - powers[i * SUM_PITCH];
            }
        }
    }

    // The difference of each of ROWS pixels from the mean of the DETAIL × DETAIL around it.
    __device__ void detail(int row, int column, float* away) const {
        const float* from = grey + (row + NEAR_REACH - DETAIL / 2) * SEEN_PITCH + column + NEAR_REACH;
        float line[ROWS + DETAIL - 1];
#pragma unroll
        for (int i = 0; i < ROWS + DETAIL - 1; ++i) {
            line[i] = 0.f;
#pragma unroll
            for (int x = -(DETAIL / 2); x <= DETAIL / 2; ++x) line[i] += from[i * SEEN_PITCH + x];
        }
#pragma unroll
        for (int i = 0; i < ROWS; ++i) {
            float total = 0.f;
#pragma unroll
            for (int j = 0; j < DETAIL; ++j) total += line[i + j];
            away[i] = fabsf(from[(i + DETAIL / 2) * SEEN_PITCH] - total * (1.f / (DETAIL * DETAIL)));
        }
    }
};

// A warp makes ROWS rows of a tile, a lane one column.
extern "C" __global__ void __launch_bounds__(256, 6) channels_near(const __grid_constant__ Near job) {
    __shared__ Windows windows;
    const Tile tile = tile_of(job.layers, blockIdx.x, NEAR_TILE, NEAR_TILE);
    if (!job.marks.near(tile.y, tile.x, tile.y + NEAR_TILE, tile.x + NEAR_TILE, job.windows ? NEAR_REACH : 0)) return;
    const int height = job.layers.height, width = job.layers.width, lane = threadIdx.x & 31;
    const int first = (threadIdx.x >> 5) * ROWS, x = tile.x + lane;
    const long long plane = job.layers.plane();
    const float* image = job.image + tile.image * 3 * plane;
    float darker[ROWS] = {}, variance[ROWS] = {}, detail[ROWS] = {};
    if (job.windows) {
        const int centre = min(tile.y + NEAR_TILE / 2, height - 1) * width + min(tile.x + NEAR_TILE / 2, width - 1);
        windows.fill(job, tile, image, luma(image, plane, centre));
        windows.surround(first, lane, darker, variance);
        windows.detail(first, lane, detail);
    }
    float* layers = job.layers.image(tile.image);
    const float* before[5];
#pragma unroll
    for (int i = 0; i < 5; ++i)
        before[i] = job.before_slot[i] < 0 ? nullptr : job.before.image(tile.image) + job.before_slot[i] * plane;
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
        const int y = tile.y + first + i, index = y * width + x;
        const bool exists = x < width && y < height;
        const float depth = fmaxf(fabsf(darker[i]) - NOISE, 0.f), power = depth * depth;
        const float strength = power / (power + variance[i] + NOISE * NOISE);
        if (job.edges) {
            const unsigned bits = __ballot_sync(~0u, exists && strength > EDGE_THRESHOLD);
            if (lane == 0 && exists)
                job.edges[(static_cast<long long>(tile.image) * height + y) * ((width + 31) / 32) + x / 32] = bits;
        }
        if (!exists) continue;
        const auto put = [&](int slot, float value) {
            if (slot >= 0) layers[slot * plane + index] = value;
        };
        float moved = 0.f;
#pragma unroll
        for (int c = 0; c < 3; ++c) {
            const float colour = __ldg(image + c * plane + index);
            put(job.slot[RED + c], colour);
            if (job.slot[MOTION] >= 0)
                moved = fmaxf(moved, fabsf(colour - (before[c] ? __ldg(before[c] + index) : 0.f)));
        }
        const float dx = 2 * x + 1 - width, dy = 2 * y + 1 - height;  // from the centre, in half pixels
        put(job.slot[X], (x + 0.5f) / width);
        put(job.slot[Y], (y + 0.5f) / height);
        put(job.slot[ECCENTRICITY], sqrtf(dx * dx + dy * dy) / job.diagonal);
        put(job.slot[EDGES], darker[i] > 0.f ? strength : 0.f);
        put(job.slot[EDGES_INVERTED], darker[i] < 0.f ? strength : 0.f);
        put(job.slot[HIGH_PASS], fmaxf(detail[i] - NOISE, 0.f));
        put(job.slot[MOTION], fminf(moved, 1.f));
        if (job.slot[SALIENCY_BEFORE] >= 0) put(job.slot[SALIENCY_BEFORE], __ldg(before[3] + index));
        if (job.slot[ATTENTION_BEFORE] >= 0) put(job.slot[ATTENTION_BEFORE], __ldg(before[4] + index));
        for (unsigned rest = job.zero[0]; rest; rest &= rest - 1) put(__ffs(rest) - 1, 0.f);
        for (unsigned rest = job.zero[1]; rest; rest &= rest - 1) put(__ffs(rest) + 31, 0.f);
    }
}

constexpr int MOST_REGIONS = 128;

struct RegionLayers {
    Layers layers;
    const int* ids;         // (B, H, W)
    const long long* sums;  // (B, R, 3): x, y and the number of pixels
    int regions;
    int id, distance, size, boundaries;  // slots
    float side;                          // the longer side of the image
};

// A thread makes four pixels of a column, its warp 32 × 4.
extern "C" __global__ void __launch_bounds__(256) channels_regions(const __grid_constant__ RegionLayers job) {
    __shared__ float centre_x[MOST_REGIONS], centre_y[MOST_REGIONS], size[MOST_REGIONS];
    const Tile tile = tile_of(job.layers, blockIdx.x, 32, 32);
    const int height = job.layers.height, width = job.layers.width;
    const long long plane = job.layers.plane();
    for (int i = threadIdx.x; i < job.regions; i += 256) {
        const long long* sum = job.sums + (static_cast<long long>(tile.image) * job.regions + i) * 3;
        const double pixels = static_cast<double>(sum[2]), whole = pixels > 0. ? pixels : 1.;
        centre_x[i] = static_cast<float>(sum[0] / whole + 0.5), centre_y[i] = static_cast<float>(sum[1] / whole + 0.5);
        size[i] = static_cast<float>(pixels / plane);
    }
    __syncthreads();
    const int x = tile.x + (threadIdx.x & 31), top = tile.y + (threadIdx.x >> 5) * 4;
    if (x >= width || top >= height) return;
    const int* ids = job.ids + tile.image * plane;
    float* layers = job.layers.image(tile.image);
    int here = __ldg(ids + top * width + x);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int y = top + i, index = y * width + x;
        if (y >= height) return;
        const int right = x + 1 < width ? __ldg(ids + index + 1) : here;
        const int below = y + 1 < height ? __ldg(ids + index + width) : here;
        const float dx = x + 0.5f - centre_x[here], dy = y + 0.5f - centre_y[here];
        if (job.id >= 0) layers[job.id * plane + index] = here;
        if (job.distance >= 0) layers[job.distance * plane + index] = fminf(sqrtf(dx * dx + dy * dy) / job.side, 1.f);
        if (job.size >= 0) layers[job.size * plane + index] = size[here];
        if (job.boundaries >= 0) layers[job.boundaries * plane + index] = right != here || below != here ? 1.f : 0.f;
        here = below;
    }
}

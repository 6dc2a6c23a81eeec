// Layers that are computed on mip levels and enlarged to the size of the image:
//   channels_coarse: low_pass and saliency
//   channels_text:   from the text found on three levels (text.cu)
// Constants are those of texturevlm/channels.
#include "layers.cuh"
#include "marks.cuh"
#include "scalar.cuh"
#include "text.cuh"

constexpr float COLOUR = 2.f, SALIENCY_HALF = 0.01f, EPSILON = 1e-9f;
constexpr float TEXT_HALF = 0.03f;

// The position of a pixel between the texels of a level: after `low`, by `share` of the way to the next.
struct Between {
    int low;
    float share;
};

__device__ __forceinline__ Between between(int pixel, int extent, int texels) {
    const double at = fmax((pixel + 0.5) * (static_cast<double>(texels) / extent) - 0.5, 0.0);
    const int low = static_cast<int>(at);
    return {low, static_cast<float>(at - low)};
}

__device__ __forceinline__ float blend(float a, float b, float share) { return a + (b - a) * share; }

// A square of a level's texels. Texels beyond the level's border repeat the border.
template <int SIDE>
struct Patch {
    float value[SIDE * SIDE];
    int y, x;  // its first texel

    __device__ float& at(int row, int column) { return value[(row - y) * SIDE + column - x]; }
    __device__ float mix(const Between& down, const Between& across) {
        const float upper = blend(at(down.low, across.low), at(down.low, across.low + 1), across.share);
        const float lower = blend(at(down.low + 1, across.low), at(down.low + 1, across.low + 1), across.share);
        return blend(upper, lower, down.share);
    }
};

// Calls work(i, y, x) for every texel of a patch: its index, and the texel of the level, clamped to its border.
template <int SIDE, class Work>
__device__ __forceinline__ void for_each(const Patch<SIDE>& patch, int height, int width, Work work) {
    for (int i = threadIdx.x; i < SIDE * SIDE; i += 256)
        work(i, inside(patch.y + i / SIDE, height), inside(patch.x + i % SIDE, width));
}

struct Level {
    const float* texels;  // (B, 3, h, w)
    int height, width;
};

struct Coarse {
    Layers layers;
    Level coarse, middle, coarser;  // levels 3, 4 and 5, or the last one
    int low_pass, saliency;         // slots
    int reach;                      // of a change, in pixels
    Marks marks;                    // only what changed is updated
};

constexpr int WIDE = 64, STRIP = 16;               // the side of a tile, and the rows per thread
constexpr int ON3 = WIDE / 8 + 2, ON4 = WIDE / 16 + 2, ON5 = WIDE / 32 + 2;  // texels of levels 3, 4, 5 that a tile reads
constexpr int MEANS = ON4 + 2, TENSORS = ON4 + 4;  // with a border for 3×3 means
constexpr int OPPONENTS4 = TENSORS + 2, OPPONENTS3 = 2 * TENSORS + 3;  // with a border for differences

struct Tensor {
    Patch<TENSORS> sum[3];  // Σ dx², Σ dy², Σ dx·dy
    Patch<MEANS> mean[3];
};

struct Enlarged {
    Between down[3][WIDE], across[3][WIDE];  // for levels 3, 4, 5
    Patch<ON3> coarse;
    Patch<ON5> coarser;
    Patch<ON4> found;
    Patch<OPPONENTS3> fine[3];  // brightness, red against green, yellow against blue
    Patch<OPPONENTS4> middle[3];
    Tensor tensor[2];
};

template <int SIDE>
__device__ void place(Patch<SIDE>& patch, int y, int x) {
    if (threadIdx.x == 0) patch.y = y, patch.x = x;
}

// Brightness, red against green and yellow against blue of a level's texels.
template <int SIDE>
__device__ __forceinline__ void fill_opponents(Patch<SIDE>* opponents, const Level& level, int image) {
    const long long plane = static_cast<long long>(level.height) * level.width;
    for_each(opponents[0], level.height, level.width, [&](int i, int y, int x) {
        const float* colour = level.texels + image * 3 * plane + y * level.width + x;
        const float red = __ldg(colour), green = __ldg(colour + plane), blue = __ldg(colour + 2 * plane);
        opponents[0].value[i] = (red + green + blue) * 0.57735027f;                       // 1 / √3
        opponents[1].value[i] = (red - green) * (COLOUR * 0.70710678f);                   // 1 / √2
        opponents[2].value[i] = (red + green - 2.f * blue) * (COLOUR * 0.40824829f);      // 1 / √6
    });
}

template <int SIDE>
__device__ __forceinline__ void fill_grey(Patch<SIDE>& patch, const Level& level, int image) {
    const long long plane = static_cast<long long>(level.height) * level.width;
    for_each(patch, level.height, level.width, [&](int i, int y, int x) {
        patch.value[i] = luma(level.texels + image * 3 * plane, plane, y * level.width + x);
    });
}

// Adds `share` of the structure tensor at a texel.
template <int SIDE>
__device__ __forceinline__ void add_tensor(Patch<SIDE>* opponents, int y, int x, float share, float* total) {
#pragma unroll
    for (int c = 0; c < 3; ++c) {
        const float dx = (opponents[c].at(y, x + 1) - opponents[c].at(y, x - 1)) * 0.5f;
        const float dy = (opponents[c].at(y + 1, x) - opponents[c].at(y - 1, x)) * 0.5f;
        total[0] += share * dx * dx, total[1] += share * dy * dy, total[2] += share * dx * dy;
    }
}

// The weight of the tap-th fine texel in coarse texel i, where an axis of `extent` is halved (see ops/mip.py).
__device__ __forceinline__ int taps(int extent) { return extent == 1 ? 1 : 2 + extent % 2; }
__device__ __forceinline__ float share_of(int i, int tap, int extent) {
    if (extent == 1 || extent % 2 == 0) return extent == 1 ? 1.f : 0.5f;
    return static_cast<float>(tap == 0 ? extent / 2 - i : tap == 1 ? extent / 2 : i + 1) / extent;
}

template <int SIDE>
__device__ __forceinline__ float mean3(Patch<SIDE>& patch, int y, int x) {
    float total = 0.f;
#pragma unroll
    for (int i = 0; i < 9; ++i) total += patch.at(y + i / 3 - 1, x + i % 3 - 1);
    return total * (1.f / 9.f);
}

// Saliency on the texels of level 4 that a tile reads. Each step needs a border, so the patches get smaller.
__device__ void find_salient(const Coarse& job, int image, Enlarged& shared) {
    const Level &fine = job.coarse, &middle = job.middle;
    const bool halve = fine.texels != middle.texels;
    fill_opponents(shared.middle, middle, image);
    if (halve) fill_opponents(shared.fine, fine, image);
    __syncthreads();
    for (int i = threadIdx.x; i < 2 * TENSORS * TENSORS; i += 256) {
        const int scale = i / (TENSORS * TENSORS), at = i - scale * TENSORS * TENSORS;
        Tensor& tensor = shared.tensor[scale];
        const int y = inside(tensor.sum[0].y + at / TENSORS, middle.height);
        const int x = inside(tensor.sum[0].x + at % TENSORS, middle.width);
        float total[3] = {0.f, 0.f, 0.f};
        if (scale == 1 || !halve) {
            add_tensor(shared.middle, y, x, 1.f, total);
        } else {
            const int fine_y = fine.height > 1 ? 2 * y : 0, fine_x = fine.width > 1 ? 2 * x : 0;
            for (int dy = 0; dy < taps(fine.height); ++dy)
                for (int dx = 0; dx < taps(fine.width); ++dx)
                    add_tensor(shared.fine, fine_y + dy, fine_x + dx,
                               share_of(y, dy, fine.height) * share_of(x, dx, fine.width), total);
        }
        for (int k = 0; k < 3; ++k) tensor.sum[k].value[at] = total[k];
    }
    __syncthreads();
    for (int i = threadIdx.x; i < 6 * MEANS * MEANS; i += 256) {
        const int which = i / (MEANS * MEANS), at = i - which * MEANS * MEANS;
        Tensor& tensor = shared.tensor[which / 3];
        Patch<MEANS>& mean = tensor.mean[which % 3];
        const int y = inside(mean.y + at / MEANS, middle.height), x = inside(mean.x + at % MEANS, middle.width);
        mean.value[at] = mean3(tensor.sum[which % 3], y, x);
    }
    __syncthreads();
    for_each(shared.found, middle.height, middle.width, [&](int i, int y, int x) {
        float total = 0.f;
        for (int scale = 0; scale < 2; ++scale) {
            Patch<MEANS>* mean = shared.tensor[scale].mean;
            const float xx = mean3(mean[0], y, x), yy = mean3(mean[1], y, x), xy = mean3(mean[2], y, x);
            total += fmaxf(xx * yy - xy * xy, 0.f) / (xx + yy + EPSILON);
        }
        shared.found.value[i] = total / (total + SALIENCY_HALF);
    });
}

extern "C" __global__ void __launch_bounds__(256) channels_coarse(const __grid_constant__ Coarse job) {
    __shared__ Enlarged shared;
    const Tile tile = tile_of(job.layers, blockIdx.x, WIDE, WIDE);
    if (!job.marks.near(tile.y, tile.x, tile.y + WIDE, tile.x + WIDE, job.reach)) return;
    const int height = job.layers.height, width = job.layers.width;
    for (int i = threadIdx.x; i < 6 * WIDE; i += 256) {
        const int level = i / WIDE % 3, step = i % WIDE;
        const Level& from = level == 0 ? job.coarse : level == 1 ? job.middle : job.coarser;
        if (i < 3 * WIDE) shared.down[level][step] = between(min(tile.y + step, height - 1), height, from.height);
        else shared.across[level][step] = between(min(tile.x + step, width - 1), width, from.width);
    }
    __syncthreads();
    const int y4 = shared.down[1][0].low, x4 = shared.across[1][0].low;
    place(shared.coarse, shared.down[0][0].low, shared.across[0][0].low);
    place(shared.coarser, shared.down[2][0].low, shared.across[2][0].low);
    place(shared.found, y4, x4);
    for (int c = 0; c < 3; ++c) {
        place(shared.middle[c], y4 - 3, x4 - 3);
        place(shared.fine[c], 2 * y4 - 5, 2 * x4 - 5);
        for (Tensor& tensor : shared.tensor) place(tensor.mean[c], y4 - 1, x4 - 1), place(tensor.sum[c], y4 - 2, x4 - 2);
    }
    __syncthreads();
    if (job.low_pass >= 0) {
        fill_grey(shared.coarse, job.coarse, tile.image);
        fill_grey(shared.coarser, job.coarser, tile.image);
    }
    if (job.saliency >= 0) find_salient(job, tile.image, shared);
    __syncthreads();
    const int column = threadIdx.x % WIDE, x = tile.x + column, first = threadIdx.x / WIDE * STRIP;
    if (x >= width) return;
    float* layers = job.layers.image(tile.image) + static_cast<long long>(tile.y) * width + x;
    const long long plane = job.layers.plane();
#pragma unroll 4
    for (int row = first; row < first + STRIP; ++row) {
        if (tile.y + row >= height) return;
        if (job.low_pass >= 0)
            layers[job.low_pass * plane + row * width] =
                fabsf(shared.coarse.mix(shared.down[0][row], shared.across[0][column]) -
                      shared.coarser.mix(shared.down[2][row], shared.across[2][column]));
        if (job.saliency >= 0)
            layers[job.saliency * plane + row * width] = shared.found.mix(shared.down[1][row], shared.across[1][column]);
    }
}

struct Found {
    const float* strokes;  // (B, h, w): strokes per texel
    int height, width;
};

struct TextLayer {
    Layers layers;
    Found found[3];   // levels 0, 1 and 2
    int levels;       // how many of them exist
    int slot;
    Listed tiles;     // to update, see text_tiles.cu
};

constexpr int LAYER_ROWS = LAYER_TALL * LAYER_WIDE / 256;

// A tile of LAYER_TALL × LAYER_WIDE pixels. A thread makes LAYER_ROWS of a column and reads all before it writes the first.
extern "C" __global__ void __launch_bounds__(256, 6) channels_text(const __grid_constant__ TextLayer job) {
    wait_for_previous();
    const int number = job.tiles.own();
    if (number < 0) return;
    const Tile tile = tile_of(job.layers, number, LAYER_TALL, LAYER_WIDE);
    const int height = job.layers.height, width = job.layers.width, x = tile.x + threadIdx.x % LAYER_WIDE;
    if (x >= width) return;
    const float* found[3];
    Between across[3];
#pragma unroll
    for (int level = 0; level < 3; ++level) {
        const Found& from = job.found[level];
        found[level] = from.strokes + static_cast<long long>(tile.image) * from.height * from.width;
        if (level > 0 && level < job.levels) across[level] = between(x, width, from.width);
    }
    float* layer = job.layers.image(tile.image) + job.slot * job.layers.plane();
    const int first = tile.y + threadIdx.x / LAYER_WIDE * LAYER_ROWS;
    float most[LAYER_ROWS];
#pragma unroll
    for (int i = 0; i < LAYER_ROWS; ++i) {
        const int y = min(first + i, height - 1);
        most[i] = found[0][y * width + x];
#pragma unroll
        for (int level = 1; level < 3; ++level) {
            if (level >= job.levels) break;
            const Found& from = job.found[level];
            const Between down = between(y, height, from.height);
            const int left = across[level].low, right = min(left + 1, from.width - 1);
            const float* upper = found[level] + down.low * from.width;
            const float* lower = found[level] + min(down.low + 1, from.height - 1) * from.width;
            const float value = blend(blend(upper[left], upper[right], across[level].share),
                                      blend(lower[left], lower[right], across[level].share), down.share);
            most[i] = fmaxf(most[i], value * (level == 1 ? 0.5f : 0.25f));
        }
    }
    let_next_start();
#pragma unroll
    for (int i = 0; i < LAYER_ROWS; ++i)
        if (first + i < height) layer[(first + i) * width + x] = most[i] / (most[i] + TEXT_HALF);
}

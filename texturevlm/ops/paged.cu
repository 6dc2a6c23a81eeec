// sample_patches of an image whose fine levels are pages in a pool, found through a page table (ops/paged.py).
// The pool is an array of equal pages in plain memory, not in texture units: their filter weights have 8 fractional bits, and
// the same tokens must come of pages and of the loaded image. A texel whose page is missing is read from the next coarser level
// that has it; how much of the footprints' weight each page was asked for is the feedback that a second pass needs.
// A block samples one patch or a part of it, a thread one of its pixels.
#include "probe.cuh"

constexpr int CHANNELS = 3;
constexpr float BYTE = 255.f;  // the value of a page's texel that stands for 1

struct PagedJob {
    const unsigned char* pool;        // (S, side, side, CHANNELS)
    const int* table;                 // (N,): the slot of each page, -1: missing; level by level, finest first, row by row
    const float* coarse;              // (T, CHANNELS): the levels that are whole, behind one another
    const float* weight;              // (K,): how much each footprint matters; null: `wanted` is left alone
    float* wanted;                    // (N,)
    const float *centre, *ddx, *ddy;  // (K, 2)
    float* pixels;                    // (K, CHANNELS, P, P)
    float max_anisotropy;
    int patch, levels, side;
    int base;                         // the first level that is whole
    int height[MAX_LEVELS], width[MAX_LEVELS];
    int first[MAX_LEVELS];            // page of a level in `table`, or texel of a whole level in `coarse`
};

// Weight for one page, gathered until another page is read: neighbouring texels mostly share one.
struct Wish {
    float* wanted;  // null: nobody asks
    float weight, sum;
    int entry;

    __device__ __forceinline__ void add(int page) {
        if (page != entry) tell(), entry = page;
        sum += weight;
    }
    __device__ __forceinline__ void tell() {
        if (wanted && sum > 0.f) atomicAdd(wanted + entry, sum);
        sum = 0.f;
    }
};

__device__ __forceinline__ int page_of(const PagedJob& job, int level, int y, int x) {
    return job.first[level] + y / job.side * ((job.width[level] + job.side - 1) / job.side) + x / job.side;
}

__device__ __forceinline__ void read_texel(const PagedJob& job, int level, int y, int x, Wish& wish, float (&texel)[CHANNELS]) {
    if (level < job.base) {
        const int page = page_of(job, level, y, x);
        wish.add(page);
        int slot = job.table[page];
        while (slot < 0 && ++level < job.base) {
            y = min(y / 2, job.height[level] - 1), x = min(x / 2, job.width[level] - 1);
            slot = job.table[page_of(job, level, y, x)];
        }
        if (slot >= 0) {
            const long long row = static_cast<long long>(slot) * job.side + y % job.side;
            const unsigned char* from = job.pool + (row * job.side + x % job.side) * CHANNELS;
#pragma unroll
            for (int c = 0; c < CHANNELS; ++c) texel[c] = from[c] / BYTE;
            return;
        }
        y = min(y / 2, job.height[level] - 1), x = min(x / 2, job.width[level] - 1);
    }
    const float* from = job.coarse + (job.first[level] + static_cast<long long>(y) * job.width[level] + x) * CHANNELS;
#pragma unroll
    for (int c = 0; c < CHANNELS; ++c) texel[c] = from[c];
}

__device__ __forceinline__ void read_level(const PagedJob& job, int level, float x, float y, Wish& wish, float (&value)[CHANNELS]) {
    int x0, x1, y0, y1;
    float slope, a[CHANNELS], b[CHANNELS], c[CHANNELS], d[CHANNELS];
    const float right = along(x, job.width[level], job.width[0], &x0, &x1, &slope);
    const float down = along(y, job.height[level], job.height[0], &y0, &y1, &slope);
    read_texel(job, level, y0, x0, wish, a);
    read_texel(job, level, y0, x1, wish, b);
    read_texel(job, level, y1, x0, wish, c);
    read_texel(job, level, y1, x1, wish, d);
#pragma unroll
    for (int i = 0; i < CHANNELS; ++i) {
        const float top = a[i] + (b[i] - a[i]) * right, bottom = c[i] + (d[i] - c[i]) * right;
        value[i] = top + (bottom - top) * down;
    }
}

extern "C" __global__ void __launch_bounds__(256) sample_paged(const __grid_constant__ PagedJob job) {
    const int footprint = blockIdx.x, area = job.patch * job.patch;
    const float weight = job.weight ? job.weight[footprint] : 0.f;
    Wish wish = {job.weight ? job.wanted : nullptr, weight, 0.f, 0};
    for (int pixel = blockIdx.y * blockDim.x + threadIdx.x; pixel < area; pixel += gridDim.y * blockDim.x) {
        const Sample sample = sample_of_patch(job.centre + 2 * footprint, job.ddx + 2 * footprint, job.ddy + 2 * footprint,
                                              job.patch, pixel, job.max_anisotropy);
        const Between levels = between(sample.lod, job.levels);
        const float share = 1.f / sample.probes;
        float value[CHANNELS] = {}, fine[CHANNELS], coarse[CHANNELS];
        for (int probe = 0; probe < sample.probes; ++probe) {
            const float offset = probe_offset(sample, probe);
            const float x = sample.x + offset * sample.spread_x, y = sample.y + offset * sample.spread_y;
            read_level(job, levels.fine, x, y, wish, fine);
            read_level(job, levels.coarse, x, y, wish, coarse);
#pragma unroll
            for (int i = 0; i < CHANNELS; ++i) value[i] += (fine[i] + (coarse[i] - fine[i]) * levels.blend) * share;
        }
        float* to = job.pixels + static_cast<long long>(footprint) * CHANNELS * area + pixel;
#pragma unroll
        for (int i = 0; i < CHANNELS; ++i) to[i * area] = value[i];
    }
    wish.tell();
}

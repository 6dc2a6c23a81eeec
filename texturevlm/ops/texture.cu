// The GPU's texture units: levels in a layered mipmapped array, filtered by the hardware.
// A layer packs PACK channels (1, 2 or 4), so that one fetch brings them all. Layers of labels (see `nearest`) come after
// the filtered ones and are read through a second texture object that does not filter.
#include "probe.cuh"

typedef unsigned long long Handle;

struct Fill {
    Pyramid pyramid;
    Handle surface[MAX_LEVELS];
    const short* channel_of_slot;  // (layers · PACK): the channel packed there, or -1 for padding
    int first_block[MAX_LEVELS];   // of each level, in one launch for all of them
    int layers;                    // per image
    int half_texels;               // 1: half, 0: float
    const int4* boxes;             // (B, count): rectangles of level 0 that changed, xyxy; null: everything did
    int count;
};

// Whether a rectangle of texels of a level may depend on a box. With odd extents a texel reads pixels of the next two.
__device__ __forceinline__ bool changed(const Fill& job, int image, int level, int top, int left, int bottom, int right) {
    if (!job.boxes) return true;
    const int more = level ? 2 : 0;
    for (int i = image * job.count; i < (image + 1) * job.count; ++i) {
        const int4 box = job.boxes[i];
        if (box.x < box.z && box.y < box.w && box.x < (right + more) << level && box.z > left << level &&
            box.y < (bottom + more) << level && box.w > top << level)
            return true;
    }
    return false;
}

__device__ __forceinline__ unsigned short half_bits(float value) {
    unsigned short bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}

#if PACK == 4
typedef float4 Texel;
typedef ushort4 HalfTexel;
__device__ __forceinline__ float4 texel_of(const float* v) { return make_float4(v[0], v[1], v[2], v[3]); }
__device__ __forceinline__ ushort4 half_texel_of(const float* v) {
    return make_ushort4(half_bits(v[0]), half_bits(v[1]), half_bits(v[2]), half_bits(v[3]));
}
__device__ __forceinline__ void unpack(float4 texel, float* v) { v[0] = texel.x, v[1] = texel.y, v[2] = texel.z, v[3] = texel.w; }
#elif PACK == 2
typedef float2 Texel;
typedef ushort2 HalfTexel;
__device__ __forceinline__ float2 texel_of(const float* v) { return make_float2(v[0], v[1]); }
__device__ __forceinline__ ushort2 half_texel_of(const float* v) { return make_ushort2(half_bits(v[0]), half_bits(v[1])); }
__device__ __forceinline__ void unpack(float2 texel, float* v) { v[0] = texel.x, v[1] = texel.y; }
#else
typedef float Texel;
typedef ushort1 HalfTexel;
__device__ __forceinline__ float texel_of(const float* v) { return v[0]; }
__device__ __forceinline__ ushort1 half_texel_of(const float* v) { return make_ushort1(half_bits(v[0])); }
__device__ __forceinline__ void unpack(float texel, float* v) { v[0] = texel; }
#endif

// A block writes 32×8 texels of one layer: the array keeps such neighbourhoods together, rows alone would scatter.
extern "C" __global__ void __launch_bounds__(256) fill(const __grid_constant__ Fill job) {
    int level = job.pyramid.levels - 1;
    while (level > 0 && static_cast<int>(blockIdx.x) < job.first_block[level]) --level;
    const int width = job.pyramid.width[level], across = (width + 31) / 32, block = blockIdx.x - job.first_block[level];
    const int left = block % across * 32, top = block / across * 8;
    const int x = left + threadIdx.x % 32, y = top + threadIdx.x / 32;
    if (x >= width || y >= job.pyramid.height[level]) return;
    const int layer = blockIdx.y, image = layer / job.layers;
    if (!changed(job, image, level, top, left, top + 8, left + 32)) return;
    const short* slots = job.channel_of_slot + (layer - image * job.layers) * PACK;
    const scalar* from = job.pyramid.data[level] + image * job.pyramid.image[level] +
                         static_cast<long long>(y) * job.pyramid.row[level] + static_cast<long long>(x) * job.pyramid.column[level];
    float value[PACK];
#pragma unroll
    for (int i = 0; i < PACK; ++i) value[i] = slots[i] >= 0 ? widen(from[slots[i] * job.pyramid.channel[level]]) : 0.f;
    if (job.half_texels)
        surf2DLayeredwrite(half_texel_of(value), job.surface[level], x * static_cast<int>(sizeof(HalfTexel)), y, layer);
    else
        surf2DLayeredwrite(texel_of(value), job.surface[level], x * static_cast<int>(sizeof(Texel)), y, layer);
}

struct Fetch {
    Handle filtered, unfiltered;
    const short* channel_of_slot;
    const float *centre, *ddx, *ddy, *lod;  // lod null: by the footprint's axes; ddx and ddy null: by lod
    scalar* values;                         // (B, K, C, P, P); P = 1 serves lookup
    unsigned samples;                       // B · K · P · P
    int per_image, patch, channels, layers, first_unfiltered, levels;
    int layers_per_thread;
    float across, down;                     // 1 / width, 1 / height of level 0
    float max_anisotropy;
};

__device__ __forceinline__ void write_layer(const Fetch& job, scalar* to, int layer, int area, const float* value) {
#pragma unroll
    for (int c = 0; c < PACK; ++c) {
        const int channel = job.channel_of_slot[layer * PACK + c];
        if (channel >= 0) to[channel * area] = narrow(value[c]);
    }
}

// A thread fetches one pixel of several layers: its place is worked out once, and the fetches overlap.
extern "C" __global__ void __launch_bounds__(256) fetch(const __grid_constant__ Fetch job) {
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x, area = job.patch * job.patch;
    if (i >= job.samples) return;
    const unsigned footprint = i / area, pixel = i - footprint * area, image = footprint / job.per_image;
    const float* centre = job.centre + 2 * footprint;
    const Sample sample = job.lod ? sample_at_level(centre, job.lod[footprint])
                                  : sample_of_patch(centre, job.ddx + 2 * footprint, job.ddy + 2 * footprint, job.patch, pixel, job.max_anisotropy);
    scalar* to = job.values + static_cast<long long>(footprint) * job.channels * area + pixel;
    const int first = blockIdx.y * job.layers_per_thread, last = min(first + job.layers_per_thread, job.layers);
    const int filtered = min(last, job.first_unfiltered), base = image * job.layers;
    const float share = 1.f / sample.probes, x = sample.x * job.across, y = sample.y * job.down;
    float value[PACK], texel[PACK];
    if (sample.probes == 1) {
#pragma unroll 4
        for (int layer = first; layer < filtered; ++layer) {
            unpack(tex2DLayeredLod<Texel>(job.filtered, x, y, base + layer, sample.lod), value);
            write_layer(job, to, layer, area, value);
        }
    } else {
        for (int layer = first; layer < filtered; ++layer) {
#pragma unroll
            for (int c = 0; c < PACK; ++c) value[c] = 0.f;
            for (int probe = 0; probe < sample.probes; ++probe) {
                const float offset = probe_offset(sample, probe);
                unpack(tex2DLayeredLod<Texel>(job.filtered, x + offset * sample.spread_x * job.across,
                                              y + offset * sample.spread_y * job.down, base + layer, sample.lod), texel);
#pragma unroll
                for (int c = 0; c < PACK; ++c) value[c] += texel[c] * share;
            }
            write_layer(job, to, layer, area, value);
        }
    }
    for (int layer = max(first, job.first_unfiltered); layer < last; ++layer) {
        const float level = floorf(fminf(fmaxf(sample.lod, 0.f), job.levels - 1.f) + 0.5f);
        unpack(tex2DLayeredLod<Texel>(job.unfiltered, x, y, base + layer, level), value);
        write_layer(job, to, layer, area, value);
    }
}

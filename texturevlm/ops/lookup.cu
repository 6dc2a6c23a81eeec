// lookup and lookup_grad on levels in plain memory.
//
// lookup:          any layout. A thread reads CHANNELS channels of one point; neighbouring threads take neighbouring points.
// lookup_texels:   the channels of a texel are contiguous. A warp takes POINTS points; its lanes share out the groups of
//                  CHANNELS channels of all of them, so that neighbouring lanes read and write neighbouring addresses.
// fold_copies:     after lookup_backward, adds up the copies of gradients of small levels.
// lookup_backward: the transpose, with the same sharing. It adds into gradients of its own layout: the channels of a
//                  texel are contiguous and padded to a multiple of four, so that one atomic instruction adds four.
#include "probe.cuh"

#ifndef CHANNELS
#define CHANNELS 4  // channels per thread
#endif
#ifndef VECTOR
#define VECTOR 0  // 1: four channels are one load; the levels are aligned and padded for it
#endif
#ifndef FOOTPRINTS
#define FOOTPRINTS 1  // 0: points have a level each, 1: two axes
#endif
#ifndef NEAREST
#define NEAREST 1  // 0: every channel is filtered
#endif
#ifndef OF_SAMPLES
#define OF_SAMPLES 1  // 0: backward, only texels need a gradient
#endif
#ifndef POINTS
#define POINTS 32  // points per warp
#endif
#ifndef SHARE
#define SHARE 1  // 1: the lanes of a warp share what is computed per point, in shared memory
#endif

constexpr int GROUP = 4;      // channels per atomic addition
constexpr int MOST_WARPS = 8;  // per block

struct Lookup {
    Pyramid pyramid;
    Gradient gradient;                      // backward: (B, H_l, W_l, C padded to a multiple of GROUP)
    const float *points, *lod, *ddx, *ddy;  // (B, N, 2), (B, N) or null, (B, N, 2) or null
    scalar* values;                         // (B, N, C): written forward, read backward
    long long samples;                      // B · N
    int per_image;                          // N
    int aligned;                            // whether four values can be read or written at once
    float max_anisotropy;
    int copies[MAX_LEVELS];                 // of each gradient: on a small level many points would wait for one address
};

__device__ __forceinline__ Sample sample_of(const Lookup& job, long long index) {
    const float2 point = reinterpret_cast<const float2*>(job.points)[index];
#if FOOTPRINTS
    const float2 ddx = reinterpret_cast<const float2*>(job.ddx)[index], ddy = reinterpret_cast<const float2*>(job.ddy)[index];
    return sample_over_footprint(point.x, point.y, ddx, ddy, job.max_anisotropy);
#else
    return {point.x, point.y, job.lod[index], 0.f, 0.f, 1};
#endif
}

__device__ __forceinline__ int image_of(const Lookup& job, long long index) {
    return job.samples == job.per_image ? 0 : static_cast<int>(index / job.per_image);
}

extern "C" __global__ void __launch_bounds__(256, 3) lookup(const __grid_constant__ Lookup job) {
    const long long index = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (index >= job.samples) return;
    const int first = blockIdx.y * CHANNELS, channels = job.pyramid.channels;
    float value[CHANNELS];
    read_sample(job.pyramid, sample_of(job, index), image_of(job, index), first, value);
#pragma unroll
    for (int i = 0; i < CHANNELS; ++i)
        if (first + i < channels) job.values[index * channels + first + i] = narrow(value[i]);
}

// The four texels around a point on one level, and how much of each is taken.
template <class Element>
struct alignas(16) Taps {
    Element* first;    // top left, channel 0
    int across, down;  // how far to its right and its lower neighbour, in elements; 0 at the border
    float weight[4];   // top left, top right, bottom left, bottom right
};

template <class Element>
struct TapsOfPoint {
    Taps<Element> fine, coarse;
};

template <class Element>
__device__ __forceinline__ Taps<Element> taps_of(Element* image, long long row, int column, const Pyramid& pyramid, int level, float x, float y, float part) {
    int x0, x1, y0, y1;
    float slope;
    const float right = along(x, pyramid.width[level], pyramid.width[0], &x0, &x1, &slope);
    const float down = along(y, pyramid.height[level], pyramid.height[0], &y0, &y1, &slope);
    const float upper = (1.f - down) * part, lower = down * part;
    return {image + y0 * row + x0 * column, (x1 - x0) * column, static_cast<int>((y1 - y0) * row),
            {upper * (1.f - right), upper * right, lower * (1.f - right), lower * right}};
}

struct Texels {  // where values are read
    typedef const scalar Element;
    static __device__ __forceinline__ Taps<Element> taps(const Lookup& job, long long index, int level, int image, float x, float y, float part) {
        const Pyramid& from = job.pyramid;
        return taps_of(plane_of(from, level, image, 0), static_cast<long long>(from.row[level]), from.column[level], from, level, x, y, part);
    }
};

struct Gradients {  // where gradients are added
    typedef float Element;
    static __device__ __forceinline__ Taps<Element> taps(const Lookup& job, long long index, int level, int image, float x, float y, float part) {
        const Pyramid& from = job.pyramid;
        const int column = (from.channels + GROUP - 1) / GROUP * GROUP;
        const long long row = static_cast<long long>(from.width[level]) * column;
        const long long copy = job.copies[level] > 1 ? index % job.copies[level] : 0;
        const long long batch = job.samples / job.per_image, start = copy * batch + image;
        return taps_of(job.gradient.data[level] + start * from.height[level] * row, row, column, from, level, x, y, part);
    }
};

// The taps of one probe of a sample on both of its levels.
template <class Memory>
__device__ __forceinline__ TapsOfPoint<typename Memory::Element> taps_of_probe(const Lookup& job, long long index, const Sample& sample, int image, int probe) {
    const Between levels = between(sample.lod, job.pyramid.levels);
    const float offset = probe_offset(sample, probe), share = 1.f / sample.probes;
    const float x = sample.x + offset * sample.spread_x, y = sample.y + offset * sample.spread_y;
    return {Memory::taps(job, index, levels.fine, image, x, y, (1.f - levels.blend) * share),
            Memory::taps(job, index, levels.coarse, image, x, y, levels.blend * share)};
}

// work(index, image, group, taps): for each point of this warp and each of its groups of channels; `taps` is null where
// they are not shared. Every lane of the warp calls it.
template <class Memory, class Work>
__device__ __forceinline__ void for_each_group(const Lookup& job, int groups, bool shared, Work work) {
    typedef TapsOfPoint<typename Memory::Element> Point;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const long long start = (static_cast<long long>(blockIdx.x) * (blockDim.x / 32) + warp) * POINTS;
    const int count = static_cast<int>(min(static_cast<long long>(POINTS), job.samples - start));
#if SHARE
    __shared__ Point points[MOST_WARPS * POINTS];
    Point* own = points + warp * POINTS;
    if (shared && lane < count) own[lane] = taps_of_probe<Memory>(job, start + lane, sample_of(job, start + lane), image_of(job, start + lane), 0);
    __syncwarp();
#else
    Point* own = nullptr;
    shared = false;
#endif
    int point = lane / groups, group = lane - point * groups;
    const int points_further = 32 / groups, groups_further = 32 - points_further * groups;
    while (point < count) {
        work(start + point, image_of(job, start + point), group, shared ? own + point : nullptr);
        point += points_further, group += groups_further;
        if (group >= groups) group -= groups, ++point;
    }
}

__device__ __forceinline__ void read_texel(const scalar* from, int first, int last, float (&value)[CHANNELS]) {
#if VECTOR
    const scalar4 four = *reinterpret_cast<const scalar4*>(from + first);
    const scalar each[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int i = 0; i < CHANNELS; ++i) value[i] = widen(each[i]);
#else
#pragma unroll
    for (int i = 0; i < CHANNELS; ++i) value[i] = widen(from[min(first + i, last)]);
#endif
}

__device__ __forceinline__ void add_taps(const Taps<const scalar>& taps, int first, int last, float (&value)[CHANNELS]) {
    float texel[4][CHANNELS];
#pragma unroll
    for (int tap = 0; tap < 4; ++tap)
        read_texel(taps.first + (tap % 2 ? taps.across : 0) + (tap / 2 ? taps.down : 0), first, last, texel[tap]);
#pragma unroll
    for (int i = 0; i < CHANNELS; ++i)
        value[i] += taps.weight[0] * texel[0][i] + taps.weight[1] * texel[1][i] + taps.weight[2] * texel[2][i] + taps.weight[3] * texel[3][i];
}

__device__ __forceinline__ void write_values(const Lookup& job, long long index, int first, const float (&value)[CHANNELS]) {
    const int channels = job.pyramid.channels;
    scalar* to = job.values + index * channels + first;
#if CHANNELS == 4
    if (job.aligned) {
        *reinterpret_cast<scalar4*>(to) = {narrow(value[0]), narrow(value[1]), narrow(value[2]), narrow(value[3])};
        return;
    }
#endif
#pragma unroll
    for (int i = 0; i < CHANNELS; ++i)
        if (first + i < channels) to[i] = narrow(value[i]);
}

extern "C" __global__ void __launch_bounds__(256, 4) lookup_texels(const __grid_constant__ Lookup job) {
    const int channels = job.pyramid.channels, groups = (channels + CHANNELS - 1) / CHANNELS;
    for_each_group<Texels>(job, groups, groups > 1 && !FOOTPRINTS, [&](long long index, int image, int group, const TapsOfPoint<const scalar>* shared) {
        const int first = group * CHANNELS, last = channels - 1;
        float value[CHANNELS] = {};
        if (shared) {
            add_taps(shared->fine, first, last, value);
            add_taps(shared->coarse, first, last, value);
        } else {
            const Sample sample = sample_of(job, index);
            for (int probe = 0; probe < sample.probes; ++probe) {
                const TapsOfPoint<const scalar> taps = taps_of_probe<Texels>(job, index, sample, image, probe);
                add_taps(taps.fine, first, last, value);
                add_taps(taps.coarse, first, last, value);
            }
        }
        if (NEAREST && job.pyramid.nearest)
#pragma unroll
            for (int i = 0; i < CHANNELS; ++i)
                if (first + i < channels && job.pyramid.nearest[first + i])
                    value[i] = read_nearest(job.pyramid, sample_of(job, index), image, first + i);
        write_values(job, index, first, value);
    });
}

__device__ __forceinline__ void add_four(float* to, float weight, const float (&value)[GROUP]) {
#if defined(__CUDACC__) && __CUDA_ARCH__ >= 900  // not in the emulator
    asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(weight * value[0]), "f"(weight * value[1]),
                 "f"(weight * value[2]), "f"(weight * value[3]) : "memory");
#else
#pragma unroll
    for (int i = 0; i < GROUP; ++i) atomicAdd(to + i, weight * value[i]);
#endif
}

__device__ __forceinline__ void scatter_taps(const Taps<float>& taps, int first, const float (&value)[GROUP]) {
    if (taps.weight[0] + taps.weight[1] + taps.weight[2] + taps.weight[3] == 0.f) return;
#pragma unroll
    for (int tap = 0; tap < 4; ++tap)
        add_four(taps.first + (tap % 2 ? taps.across : 0) + (tap / 2 ? taps.down : 0) + first, taps.weight[tap], value);
}

__device__ __forceinline__ void read_upstream(const Lookup& job, long long index, int first, float (&value)[GROUP]) {
    const int channels = job.pyramid.channels;
    const scalar* from = job.values + index * channels + first;
    if (job.aligned) {
        const scalar4 four = *reinterpret_cast<const scalar4*>(from);
        value[0] = widen(four.x), value[1] = widen(four.y), value[2] = widen(four.z), value[3] = widen(four.w);
    } else {
#pragma unroll
        for (int i = 0; i < GROUP; ++i) value[i] = first + i < channels ? widen(from[i]) : 0.f;
    }
    if (NEAREST && job.pyramid.nearest)
#pragma unroll
        for (int i = 0; i < GROUP; ++i)
            if (first + i < channels && job.pyramid.nearest[first + i]) value[i] = 0.f;
}

extern "C" __global__ void __launch_bounds__(256) lookup_backward(const __grid_constant__ Lookup job) {
    const int groups = (job.pyramid.channels + GROUP - 1) / GROUP;
    const bool scattered = job.gradient.data[0] != nullptr;
    for_each_group<Gradients>(job, groups, scattered && groups > 1 && !FOOTPRINTS, [&](long long index, int image, int group, const TapsOfPoint<float>* shared) {
        const int first = group * GROUP;
        float upstream[GROUP];
        read_upstream(job, index, first, upstream);
        if (shared) {
            scatter_taps(shared->fine, first, upstream);
            scatter_taps(shared->coarse, first, upstream);
        } else if (scattered) {
            const Sample sample = sample_of(job, index);
            for (int probe = 0; probe < sample.probes; ++probe) {
                const TapsOfPoint<float> taps = taps_of_probe<Gradients>(job, index, sample, image, probe);
                scatter_taps(taps.fine, first, upstream);
                scatter_taps(taps.coarse, first, upstream);
            }
        }
        if (OF_SAMPLES && job.gradient.sample)
            add_sample_gradient(job.pyramid, job.gradient, sample_of(job, index), image, first, upstream, index);
    });
}

// blockIdx.y: the level. The sum goes into the first copy.
extern "C" __global__ void __launch_bounds__(256) fold_copies(const __grid_constant__ Lookup job) {
    const int level = blockIdx.y, copies = job.copies[level];
    const long long batch = job.samples / job.per_image, room = (job.pyramid.channels + GROUP - 1) / GROUP * GROUP;
    const long long size = batch * job.pyramid.height[level] * job.pyramid.width[level] * room;
    const long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (copies < 2 || i >= size) return;
    float* data = job.gradient.data[level] + i;
    float sum = 0.f;
#pragma unroll 8
    for (int copy = 0; copy < copies; ++copy) sum += data[copy * size];
    *data = sum;
}

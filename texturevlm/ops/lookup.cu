// lookup and lookup_grad on levels in plain memory: a thread reads CHANNELS channels of one point.
#include "probe.cuh"

constexpr int CHANNELS = 4;

struct Lookup {
    Pyramid pyramid;
    Gradient gradient;
    const float *points, *lod, *ddx, *ddy;  // (B, N, 2), (B, N) or null, (B, N, 2) or null
    scalar* values;                         // (B, N, C): written forward, read backward
    long long samples;                      // B · N
    int per_image, channels_first;          // N; which of channel and point neighbouring threads differ in
    float max_anisotropy;
};

struct Work {
    long long index;
    int image, first;
};

// Neighbouring threads take neighbouring channels where those lie together in memory, else neighbouring points.
__device__ __forceinline__ bool work_of_thread(const Lookup& job, Work* work) {
    const long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    const int groups = (job.pyramid.channels + CHANNELS - 1) / CHANNELS;
    if (i >= job.samples * groups) return false;
    work->index = job.channels_first ? i / groups : i % job.samples;
    work->first = static_cast<int>(job.channels_first ? i % groups : i / job.samples) * CHANNELS;
    work->image = static_cast<int>(work->index / job.per_image);
    return true;
}

__device__ __forceinline__ Sample sample_of(const Lookup& job, long long index) {
    const float* point = job.points + 2 * index;
    if (job.lod) return sample_at_level(point, job.lod[index]);
    const float2 ddx = {job.ddx[2 * index], job.ddx[2 * index + 1]}, ddy = {job.ddy[2 * index], job.ddy[2 * index + 1]};
    return sample_over_footprint(point[0], point[1], ddx, ddy, job.max_anisotropy);
}

extern "C" __global__ void __launch_bounds__(256, 3) lookup(const __grid_constant__ Lookup job) {
    Work work;
    if (!work_of_thread(job, &work)) return;
    float value[CHANNELS];
    read_sample(job.pyramid, sample_of(job, work.index), work.image, work.first, value);
#pragma unroll
    for (int i = 0; i < CHANNELS; ++i)
        if (work.first + i < job.pyramid.channels) job.values[work.index * job.pyramid.channels + work.first + i] = narrow(value[i]);
}

extern "C" __global__ void __launch_bounds__(256) lookup_backward(const __grid_constant__ Lookup job) {
    Work work;
    if (!work_of_thread(job, &work)) return;
    spread_gradient(job.pyramid, job.gradient, sample_of(job, work.index), work.image, work.first,
                    min(work.first + CHANNELS, job.pyramid.channels), job.values + work.index * job.pyramid.channels, 1, work.index);
}

// sample_patches on levels in plain memory: a block reads CHANNELS channels of one patch, a thread one of its pixels.
#include "probe.cuh"

constexpr int CHANNELS = 4;

struct PatchJob {
    Pyramid pyramid;
    Gradient gradient;
    const float *centre, *ddx, *ddy;  // (B, K, 2)
    scalar* pixels;                   // (B, K, C, P, P): written forward, read backward
    int per_image, patch, groups;     // K; P; how many blocks share the channels of one patch
    float max_anisotropy;
};

// Three blocks a multiprocessor: fewer registers than the compiler would take, and a quarter faster on an H200.
extern "C" __global__ void __launch_bounds__(256, 3) sample_patches(const __grid_constant__ PatchJob job) {
    const long long footprint = blockIdx.x / job.groups;
    const int first = (blockIdx.x % job.groups) * CHANNELS, image = static_cast<int>(footprint / job.per_image);
    const int area = job.patch * job.patch, channels = job.pyramid.channels;
    scalar* to = job.pixels + (footprint * channels + first) * area;
    for (int pixel = threadIdx.x; pixel < area; pixel += blockDim.x) {
        const Sample sample = sample_of_patch(job.centre + 2 * footprint, job.ddx + 2 * footprint, job.ddy + 2 * footprint,
                                              job.patch, pixel, job.max_anisotropy);
        float value[CHANNELS];
        read_sample(job.pyramid, sample, image, first, value);
#pragma unroll
        for (int i = 0; i < CHANNELS; ++i)
            if (first + i < channels) to[i * area + pixel] = narrow(value[i]);
    }
}

extern "C" __global__ void __launch_bounds__(256) sample_patches_backward(const __grid_constant__ PatchJob job) {
    const long long footprint = blockIdx.x / job.groups;
    const int first = (blockIdx.x % job.groups) * CHANNELS, image = static_cast<int>(footprint / job.per_image);
    const int area = job.patch * job.patch, channels = job.pyramid.channels;
    for (int pixel = threadIdx.x; pixel < area; pixel += blockDim.x) {
        const Sample sample = sample_of_patch(job.centre + 2 * footprint, job.ddx + 2 * footprint, job.ddy + 2 * footprint,
                                              job.patch, pixel, job.max_anisotropy);
        spread_gradient(job.pyramid, job.gradient, sample, image, first, min(first + CHANNELS, channels),
                        job.pixels + footprint * channels * area + pixel, area, footprint * area + pixel);
    }
}

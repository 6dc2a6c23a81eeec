// sample_patches on levels in plain memory: a block reads CHANNELS channels of one patch or of a part of it, a thread one
// of its pixels.
// refresh_patches does so only for the footprints that read a marked tile, and leaves the other patches as they are.
#include "marks.cuh"
#include "probe.cuh"

constexpr int CHANNELS = 4;

struct PatchJob {
    Pyramid pyramid;
    Gradient gradient;
    const float *centre, *ddx, *ddy;  // (B, K, 2)
    scalar* pixels;                   // (B, K, C, P, P): written forward, read backward; the gradient is planar
    int per_image, patch, groups;     // K; P; how many blocks share the channels of one patch
    float max_anisotropy;
};

// blockIdx.y: which part of the patch's pixels.
__device__ __forceinline__ void write_patch(const PatchJob& job, long long footprint) {
    const int first = (blockIdx.x % job.groups) * CHANNELS, image = static_cast<int>(footprint / job.per_image);
    const int area = job.patch * job.patch, channels = job.pyramid.channels;
    scalar* to = job.pixels + (footprint * channels + first) * area;
    for (int pixel = blockIdx.y * blockDim.x + threadIdx.x; pixel < area; pixel += gridDim.y * blockDim.x) {
        const Sample sample = sample_of_patch(job.centre + 2 * footprint, job.ddx + 2 * footprint, job.ddy + 2 * footprint,
                                              job.patch, pixel, job.max_anisotropy);
        float value[CHANNELS];
        read_sample(job.pyramid, sample, image, first, value);
#pragma unroll
        for (int i = 0; i < CHANNELS; ++i)
            if (first + i < channels) to[i * area + pixel] = narrow(value[i]);
    }
}

// Three blocks a multiprocessor: fewer registers than the compiler would take, and a quarter faster on an H200.
extern "C" __global__ void __launch_bounds__(256, 3) sample_patches(const __grid_constant__ PatchJob job) {
    write_patch(job, blockIdx.x / job.groups);
}

struct Refresh {
    PatchJob job;                // of one image
    Marks marks;                 // on level 0
    const unsigned char* valid;  // (K,): slots that are used
    unsigned char* sampled;      // (K,): gets whether a patch was written
};

constexpr float READ_BEYOND = 2.f;  // texels of the coarser of two levels: how far outside its footprint a sample may read

// Whether what a footprint reads lies partly in a marked tile (texturevlm/video/change.py: reads_marked).
__device__ __forceinline__ bool reads_marked(const Refresh& refresh, long long footprint) {
    const PatchJob& job = refresh.job;
    const float *centre = job.centre + 2 * footprint, *ddx = job.ddx + 2 * footprint, *ddy = job.ddy + 2 * footprint;
    const float along = sqrtf(ddx[0] * ddx[0] + ddx[1] * ddx[1]), down = sqrtf(ddy[0] * ddy[0] + ddy[1] * ddy[1]);
    const float step = fmaxf(fminf(along, down), fmaxf(along, down) / job.max_anisotropy);
    const float coarse = exp2f(ceilf(log2f(fmaxf(step, 1.f))));
    int low[2], high[2];
#pragma unroll
    for (int axis = 0; axis < 2; ++axis) {
        const float extent = axis ? job.pyramid.height[0] : job.pyramid.width[0];
        const float margin = READ_BEYOND * (extent / fmaxf(floorf(extent / coarse), 1.f)) + 1.f;
        const float half = (fabsf(ddx[axis]) + fabsf(ddy[axis])) * (job.patch * 0.5f);
        // what lies outside the image reads its edge
        low[axis] = static_cast<int>(floorf(fminf(fmaxf(centre[axis] - half, 0.f), extent) - margin));
        high[axis] = static_cast<int>(floorf(fminf(fmaxf(centre[axis] + half, 0.f), extent) + margin)) + 1;
    }
    return refresh.marks.near(low[1], low[0], high[1], high[0], 0);
}

extern "C" __global__ void __launch_bounds__(256, 3) refresh_patches(const __grid_constant__ Refresh refresh) {
    const long long footprint = blockIdx.x / refresh.job.groups;
    const bool again = refresh.valid[footprint] && reads_marked(refresh, footprint);
    if (threadIdx.x == 0 && blockIdx.y == 0 && blockIdx.x % refresh.job.groups == 0) refresh.sampled[footprint] = again;
    if (again) write_patch(refresh.job, footprint);
}

extern "C" __global__ void __launch_bounds__(256) sample_patches_backward(const __grid_constant__ PatchJob job) {
    const long long footprint = blockIdx.x / job.groups;
    const int first = (blockIdx.x % job.groups) * CHANNELS, image = static_cast<int>(footprint / job.per_image);
    const int area = job.patch * job.patch, channels = job.pyramid.channels;
    for (int pixel = threadIdx.x; pixel < area; pixel += blockDim.x) {
        const Sample sample = sample_of_patch(job.centre + 2 * footprint, job.ddx + 2 * footprint, job.ddy + 2 * footprint,
                                              job.patch, pixel, job.max_anisotropy);
        const scalar* from = job.pixels + (footprint * channels + first) * area + pixel;
        float upstream[CHANNELS];
#pragma unroll
        for (int i = 0; i < CHANNELS; ++i) {
            const bool filtered = first + i < channels && !(job.pyramid.nearest && job.pyramid.nearest[first + i]);
            upstream[i] = filtered ? widen(from[i * area]) : 0.f;
        }
        if (job.gradient.data[0]) add_texel_gradient(job.pyramid, job.gradient, sample, image, first, upstream);
        if (job.gradient.sample) add_sample_gradient(job.pyramid, job.gradient, sample, image, first, upstream, footprint * area + pixel);
    }
}

// The logits of the channel scorer (texturevlm/relevance/channel_logits.py) without its features in memory.
//   channel_points: where each cell reads the channels: here, around and wide, each at its own level
//   channel_sums:   the linear form of each cell, and its share of the mean over its region
//   channel_means:  adds the mean over the region, and takes motion away as far as all of the image moves
// A mean over a region of a linear form is the linear form of the means: one number per cell is summed, not one per
// channel. Sums are of integers, so their order does not matter.
#include "scalar.cuh"

constexpr int CONTEXTS = 3;                      // here, around, wide
constexpr int BLOCKS = CONTEXTS + 2;             // …, region, squared: rows of weights
constexpr int MAPS = 3;                          // salience, legible_scale, ink
constexpr int MOST_REGIONS = 1024;
constexpr float UNIT = 268435456.f;              // of the sums
constexpr float LARGEST = 16384.f;               // what a cell adds to its region, at most
constexpr float FLOOR = 0.01f;                   // of a density whose mean is 1
constexpr float FINEST_SCALE = 0.25f, COARSEST_SCALE = 64.f;
constexpr float MOVING = 0.05f, ALL_MOVES = 0.25f;
constexpr int COUNTERS = 8;                      // of moving cells per image: atomics on one address wait for each other

struct Cells {
    float* points;               // (B, CONTEXTS, N, 2)
    float* lod;                  // (B, CONTEXTS, N)
    const float* values;         // (B, CONTEXTS, N, C)
    const float* weights;        // (kinds, BLOCKS · C + MAPS + 1): per block and channel, per map, and a constant
    const float* salience;       // (B, N)
    const float* legible_scale;  // (B, N)
    const unsigned char* ink;    // (B, N)
    const long long* kind;       // (B,)
    float* logits;               // (B, N)
    unsigned long long* sums;    // (B, MOST_REGIONS), 0
    int* counts;                 // (B, MOST_REGIONS), 0
    int* moving;                 // (B, COUNTERS), 0
    unsigned short* regions;     // (B, N)
    int batch, rows, columns, channels, labels;  // labels: the channel that names a region
    int motion;                  // the channel of motion; -1: there is none
    float height, width;         // of level 0 of the channels
    float level[CONTEXTS];
};

extern "C" __global__ void __launch_bounds__(256) channel_points(const __grid_constant__ Cells job) {
    const long long index = blockIdx.x * 256LL + threadIdx.x, count = job.rows * job.columns;
    if (index >= count * CONTEXTS * job.batch) return;
    const int cell = index % count;
    job.points[2 * index] = (cell % job.columns + 0.5f) * (job.width / job.columns);
    job.points[2 * index + 1] = (cell / job.columns + 0.5f) * (job.height / job.rows);
    job.lod[index] = job.level[index / count % CONTEXTS];
}

// One cell per warp; the lanes share out the channels.
extern "C" __global__ void __launch_bounds__(256) channel_sums(const __grid_constant__ Cells job) {
    const int lane = threadIdx.x % 32, channels = job.channels;
    const long long count = job.rows * job.columns, index = blockIdx.x * 8LL + threadIdx.x / 32;
    if (index >= count * job.batch) return;
    const long long image = index / count, cell = index % count;
    const float* weights = job.weights + job.kind[image] * (BLOCKS * channels + MAPS + 1);
    const float* values = job.values + (image * CONTEXTS * count + cell) * channels;
    float sum = 0.f, part = 0.f;
    for (int channel = lane; channel < channels; channel += 32) {
        const float here = values[channel];
        sum += here * (weights[channel] + here * weights[(CONTEXTS + 1) * channels + channel]);
#pragma unroll
        for (int context = 1; context < CONTEXTS; ++context)
            sum += values[context * count * channels + channel] * weights[context * channels + channel];
        part += here * weights[CONTEXTS * channels + channel];
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        sum += __shfl_xor_sync(~0u, sum, step);
        part += __shfl_xor_sync(~0u, part, step);
    }
    if (lane != 0) return;
    const float* of_maps = weights + BLOCKS * channels;
    sum += of_maps[0] * logf(job.salience[index] * count + FLOOR) + of_maps[MAPS];
    sum += of_maps[1] * log2f(fminf(fmaxf(job.legible_scale[index], FINEST_SCALE), COARSEST_SCALE));
    job.logits[index] = sum + of_maps[2] * (job.ink[index] != 0);
    const int region = min(max(static_cast<int>(rintf(values[job.labels])), 0), MOST_REGIONS - 1);
    job.regions[index] = region;
    const long long whole = llrintf(fminf(fmaxf(part, -LARGEST), LARGEST) * UNIT);
    atomicAdd(job.sums + image * MOST_REGIONS + region, static_cast<unsigned long long>(whole));
    atomicAdd(job.counts + image * MOST_REGIONS + region, 1);
    if (job.motion >= 0 && values[job.motion] > MOVING)
        atomicAdd(job.moving + image * COUNTERS + cell % COUNTERS, 1);
}

extern "C" __global__ void __launch_bounds__(256) channel_means(const __grid_constant__ Cells job) {
    const long long index = blockIdx.x * 256LL + threadIdx.x, count = job.rows * job.columns;
    if (index >= count * job.batch) return;
    const long long image = index / count, place = image * MOST_REGIONS + job.regions[index];
    const double sum = static_cast<double>(static_cast<long long>(job.sums[place]));
    float more = static_cast<float>(sum / UNIT / job.counts[place]);
    if (job.motion >= 0) {
        int moving = 0;
#pragma unroll
        for (int counter = 0; counter < COUNTERS; ++counter) moving += job.moving[image * COUNTERS + counter];
        const float moves = fminf(moving / (ALL_MOVES * count), 1.f);
        const float here = job.values[(image * CONTEXTS * count + index % count) * job.channels + job.motion];
        more -= moves * here * job.weights[job.kind[image] * (BLOCKS * job.channels + MAPS + 1) + job.motion];
    }
    job.logits[index] += more;
}

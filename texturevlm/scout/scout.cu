// What the ranker does between its convolutions (texturevlm/scout/ranker.py, `_scores`) and after them.
//   scout_film:   FiLM: maps times a factor plus a shift, from the question; then ReLU; in place
//   scout_lift:   a 1×1 convolution of a coarser scale, added to the four cells that each coarse cell covers
//   scout_scores: the last 1×1 convolution, to scores of spots; the maximum and sum of exponentials per block
//   scout_chance: the softmax over all spots and "not on this page", times the probability of text
// Maps are channels-last, and a multiple of four of them.
#include "scalar.cuh"

constexpr int PACK = 4, CELLS = 256 / 4;

struct alignas(PACK * sizeof(scalar)) Pack { scalar values[PACK]; };

struct Film {
    scalar* values;      // (B, cells, width)
    const float* films;  // (Q, next): factors, then shifts
    long long packs;     // per image
    int width, next, questions;
};

extern "C" __global__ void __launch_bounds__(256) scout_film(const __grid_constant__ Film job) {
    const long long at = blockIdx.x * 256LL + threadIdx.x;
    if (at >= job.packs) return;
    const float* factor = job.films + (job.questions == 1 ? 0LL : blockIdx.y) * job.next + at * PACK % job.width;
    Pack* to = reinterpret_cast<Pack*>(job.values) + blockIdx.y * job.packs + at;
    Pack pack = *to;
#pragma unroll
    for (int i = 0; i < PACK; ++i)
        pack.values[i] = narrow(fmaxf(factor[job.width + i] + factor[i] * widen(pack.values[i]), 0.f));
    *to = pack;
}

struct Lift {
    const scalar* coarse;  // (B, ⌈rows / 2⌉, ⌈columns / 2⌉, inputs)
    const scalar* weight;  // (inputs, width)
    const scalar* added;   // (width,)
    scalar* values;        // (B, rows, columns, width), added to
    int rows, columns, inputs, width;
};

// Four threads make four maps of a coarse cell. Each sums a quarter of the inputs, so that all are loaded at once; then it adds
// the sums to one of the four cells.
extern "C" __global__ void __launch_bounds__(256) scout_lift(const __grid_constant__ Lift job) {
    const int across = (job.columns + 1) / 2, cells = (job.rows + 1) / 2 * across, packs = job.width / PACK;
    const int at = blockIdx.x * 256 + threadIdx.x, part = at % 4, pack = at / 4 % packs, wanted = at / 4 / packs;
    const int cell = min(wanted, cells - 1), row = 2 * (cell / across) + part / 2, column = 2 * (cell % across) + part % 2;
    const bool mine = wanted < cells && row < job.rows && column < job.columns;
    const long long line = static_cast<long long>(blockIdx.y) * job.rows + row;
    Pack* to = reinterpret_cast<Pack*>(job.values + (line * job.columns + column) * job.width) + pack;
    Pack own = {};
    if (mine) own = *to;  // loaded early
    const scalar* from = job.coarse + (static_cast<long long>(blockIdx.y) * cells + cell) * job.inputs;
    float sums[PACK] = {};
#pragma unroll 6
    for (int input = part * PACK; input < job.inputs; input += 4 * PACK) {
        const Pack values = *reinterpret_cast<const Pack*>(from + input);
#pragma unroll
        for (int i = 0; i < PACK; ++i) {
            const Pack weights = reinterpret_cast<const Pack*>(job.weight + (input + i) * job.width)[pack];
#pragma unroll
            for (int map = 0; map < PACK; ++map) sums[map] += widen(values.values[i]) * widen(weights.values[map]);
        }
    }
    const Pack added = reinterpret_cast<const Pack*>(job.added)[pack];
#pragma unroll
    for (int map = 0; map < PACK; ++map) {
        sums[map] += __shfl_xor_sync(~0u, sums[map], 1);
        sums[map] += __shfl_xor_sync(~0u, sums[map], 2);
        own.values[map] = narrow(widen(own.values[map]) + widen(added.values[map]) + sums[map]);
    }
    if (mine) *to = own;
}

struct Tail {
    const scalar* values;  // (B, rows / 2, columns / 2, width)
    const float* last;     // (4, width), of the four spots of a cell
    const float* added;    // (5,): biases, and the score of "not on this page"
    const float* shown;    // (B, rows, columns)
    float* scores;         // (B, rows, columns), added to
    float2* parts;         // (B, blocks): the largest score of a block, and the sum of exp(score − largest)
    float* chance;         // (B, rows, columns)
    int rows, columns, width, blocks;
};

// The maximum, or the sum, over a block, returned to every thread.
template <bool LARGEST>
__device__ float over_block(float value) {
    __shared__ float warps[8];
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        const float other = __shfl_xor_sync(~0u, value, step);
        value = LARGEST ? fmaxf(value, other) : value + other;
    }
    __syncthreads();
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
    __syncthreads();
    float all = warps[0];
    for (int i = 1; i < 8; ++i) all = LARGEST ? fmaxf(all, warps[i]) : all + warps[i];
    return all;
}

constexpr float LEAST = -3e38f;

// One spot per thread; the four spots of a cell are neighbours.
extern "C" __global__ void __launch_bounds__(256) scout_scores(const __grid_constant__ Tail job) {
    let_next_start();
    const int across = job.columns / 2, cells = job.rows / 2 * across, spot = threadIdx.x % 4;
    const int cell = blockIdx.x * CELLS + threadIdx.x / 4;
    float score = LEAST;
    if (cell < cells) {
        const long long first = (static_cast<long long>(blockIdx.y) * cells + cell) * job.width;
        const Pack* from = reinterpret_cast<const Pack*>(job.values + first);
        const float* weight = job.last + spot * job.width;
        const int row = 2 * (cell / across) + spot / 2, column = 2 * (cell % across) + spot % 2;
        float* to = job.scores + (static_cast<long long>(blockIdx.y) * job.rows + row) * job.columns + column;
        score = *to + job.added[spot];
#pragma unroll 4
        for (int input = 0; input < job.width; input += PACK) {
            const Pack pack = from[input / PACK];
#pragma unroll
            for (int i = 0; i < PACK; ++i) score += widen(pack.values[i]) * __ldg(weight + input + i);
        }
        *to = score;
    }
    const float largest = over_block<true>(score), sum = over_block<false>(cell < cells ? expf(score - largest) : 0.f);
    if (threadIdx.x == 0) {
        float2* to = job.parts + static_cast<long long>(blockIdx.y) * job.blocks + blockIdx.x;
        to->x = largest, to->y = sum;
    }
}

extern "C" __global__ void __launch_bounds__(256) scout_chance(const __grid_constant__ Tail job) {
    wait_for_previous();
    const float2* parts = job.parts + static_cast<long long>(blockIdx.y) * job.blocks;
    const float absent = job.added[4];
    float largest = absent, sum = 0;
    for (int i = threadIdx.x; i < job.blocks; i += 256) largest = fmaxf(largest, parts[i].x);
    largest = over_block<true>(largest);
    for (int i = threadIdx.x; i < job.blocks; i += 256) sum += parts[i].y * expf(parts[i].x - largest);
    sum = over_block<false>(sum) + expf(absent - largest);
    const int spots = job.rows * job.columns, spot = blockIdx.x * 256 + threadIdx.x;
    if (spot >= spots) return;
    const long long at = static_cast<long long>(blockIdx.y) * spots + spot;
    job.chance[at] = expf(job.scores[at] - largest) / sum * job.shown[at];
}

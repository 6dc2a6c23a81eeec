// Sliding windows in registers: a thread holds a run of values, joins neighbours, then pairs of pairs, and so on.
#pragma once

struct Highest {
    __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};
struct Lowest {
    __device__ float operator()(float a, float b) const { return fminf(a, b); }
};

// From joins of STEP values to joins of POWER values. A recursion, not a loop: only constant indices stay in registers.
template <int STEP, int POWER, int LENGTH, class Join>
__device__ __forceinline__ void grow(float* run, Join join) {
    if constexpr (STEP < POWER) {
#pragma unroll
        for (int i = 0; i + 2 * STEP <= LENGTH; ++i) run[i] = join(run[i], run[i + STEP]);
        grow<2 * STEP, POWER, LENGTH>(run, join);
    }
}

// run[i] = the join of run[i … i + WINDOW), for the first COUNT of COUNT + WINDOW − 1 values.
template <int WINDOW, int COUNT, class Join>
__device__ __forceinline__ void slide(float* run, Join join) {
    constexpr int POWER = WINDOW >= 16 ? 16 : WINDOW >= 8 ? 8 : 4;
    grow<1, POWER, COUNT + WINDOW - 1>(run, join);
#pragma unroll
    for (int i = 0; i < COUNT; ++i) run[i] = join(run[i], run[i + WINDOW - POWER]);
}

template <int COUNT>
__device__ __forceinline__ void load(float* run, const float* from, int step) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) run[i] = from[i * step];
}

template <int COUNT>
__device__ __forceinline__ void store(const float* run, float* to, int step) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) to[i * step] = run[i];
}

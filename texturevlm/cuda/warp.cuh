// What the lanes of a warp find out together.
#pragma once

// The sum of the values of lane 0 to this one.
template <class Number>
__device__ __forceinline__ Number sum_to_lane(Number value) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const Number other = __shfl_up_sync(~0u, value, step);
        if (lane >= step) value += other;
    }
    return value;
}

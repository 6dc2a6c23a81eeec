// Sums over the lanes of a warp.
#pragma once

// The sum over all lanes, returned to each. All lanes must call it.
__device__ __forceinline__ int warp_sum(int value) {
#if __CUDA_ARCH__ >= 800
    return __reduce_add_sync(~0u, value);
#else
#pragma unroll
    for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(~0u, value, step);
    return value;
#endif
}

// The sum over lane 0 to this one, both included.
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

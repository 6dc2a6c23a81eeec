// One source serves three element types: it is compiled with SCALAR defined as 32 (float), 16 (half) or 17 (bfloat16).
// Arithmetic is always float. The conversions are written out, so that NVRTC needs no header files on the user's machine.
#pragma once

#if SCALAR == 32
typedef float scalar;
typedef float2 scalar2;
typedef float4 scalar4;
__device__ __forceinline__ float widen(scalar value) { return value; }
__device__ __forceinline__ scalar narrow(float value) { return value; }
#else
typedef unsigned short scalar;
typedef ushort2 scalar2;
typedef ushort4 scalar4;
#if SCALAR == 16
__device__ __forceinline__ float widen(scalar bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}
__device__ __forceinline__ scalar narrow(float value) {
    scalar bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}
#else
__device__ __forceinline__ float widen(scalar bits) { return __uint_as_float(static_cast<unsigned>(bits) << 16); }
__device__ __forceinline__ scalar narrow(float value) {
    scalar bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}
#endif
#endif

constexpr int MAX_LEVELS = 20;

// Programmatic dependent launch; launch.py has the three rules. Both calls have no effect on GPUs before compute capability 9.0
// and for kernels that are not launched early.
__device__ __forceinline__ void let_next_start() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}
__device__ __forceinline__ void wait_for_previous() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

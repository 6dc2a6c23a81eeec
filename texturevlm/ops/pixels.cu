// Bytes of images and floating-point planes (ops/pixels.py). A thread makes four values at once, where four are there.
#include "scalar.cuh"

struct Unpack {
    const unsigned char* bytes;  // (B, area, 3)
    float* planes;               // (B, 3, area)
    int area;                    // pixels of an image
};

// blockIdx.y: which image.
extern "C" __global__ void __launch_bounds__(256) pixels_unpack(const __grid_constant__ Unpack job) {
    const int first = (blockIdx.x * 256 + threadIdx.x) * 4;
    if (first >= job.area) return;
    const unsigned char* from = job.bytes + (static_cast<long long>(blockIdx.y) * job.area + first) * 3;
    float* to = job.planes + static_cast<long long>(blockIdx.y) * job.area * 3 + first;
    if (job.area % 4) {  // nothing is aligned
        for (int i = 0; i < min(4, job.area - first); ++i)
            for (int plane = 0; plane < 3; ++plane)
                to[static_cast<long long>(plane) * job.area + i] = from[3 * i + plane] / 255.f;
        return;
    }
    unsigned words[3];
    float values[12];
#pragma unroll
    for (int i = 0; i < 3; ++i) words[i] = reinterpret_cast<const unsigned*>(from)[i];
#pragma unroll
    for (int i = 0; i < 12; ++i) values[i] = (words[i / 4] >> 8 * (i % 4) & 255u) / 255.f;
#pragma unroll
    for (int plane = 0; plane < 3; ++plane) {
        float4* four = reinterpret_cast<float4*>(to + static_cast<long long>(plane) * job.area);
        *four = {values[plane], values[plane + 3], values[plane + 6], values[plane + 9]};
    }
}

struct Pack {
    const float* values;
    unsigned char* bytes;
    long long count;
};

__device__ __forceinline__ unsigned byte_of(float value) { return min(max(__float2int_rn(value * 255.f), 0), 255); }

extern "C" __global__ void __launch_bounds__(256) pixels_pack(const __grid_constant__ Pack job) {
    const long long first = (blockIdx.x * 256LL + threadIdx.x) * 4;
    if (first + 4 <= job.count) {
        const float4 four = *reinterpret_cast<const float4*>(job.values + first);
        *reinterpret_cast<unsigned*>(job.bytes + first) =
            byte_of(four.x) | byte_of(four.y) << 8 | byte_of(four.z) << 16 | byte_of(four.w) << 24;
    } else {
        for (long long i = first; i < job.count; ++i) job.bytes[i] = byte_of(job.values[i]);
    }
}

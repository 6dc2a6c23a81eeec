// The transpose of mipmap by mean where extents halve without remainder: what a texel of level 0 receives from every level
// above it, in one pass. Gradients may have any layout; a block writes 1024 texels of 2^channel_bits channels.
#include "scalar.cuh"

constexpr int TILE_BITS = 10;

struct MipGradient {
    const float* level[MAX_LEVELS];  // gradient that reached this level; null: none
    long long image[MAX_LEVELS], channel[MAX_LEVELS], row[MAX_LEVELS], column[MAX_LEVELS];  // its strides
    float* total;                    // (B, C, H, W)
    long long total_image, total_channel, total_row, total_column;
    int batch, channels, height, width, levels;
    int channel_bits, column_bits;   // of a block's tile; its rows take the other bits
    int channels_together;           // 1: neighbouring threads take neighbouring channels, 0: columns
};

struct Texel {
    int image, channel, y, x;
    bool inside;
};

// Texel `i` of this block's tile.
__device__ __forceinline__ Texel texel_of(const MipGradient& job, int i, bool channels_together) {
    const int row_bits = TILE_BITS - job.channel_bits - job.column_bits;
    const int across = (job.width + (1 << job.column_bits) - 1) >> job.column_bits;
    const int down = (job.height + (1 << row_bits) - 1) >> row_bits;
    const int deep = (job.channels + (1 << job.channel_bits) - 1) >> job.channel_bits;
    const int plane = blockIdx.x / (across * down), tile = blockIdx.x - plane * across * down;
    int c = i & ((1 << job.channel_bits) - 1), x = i >> job.channel_bits & ((1 << job.column_bits) - 1);
    if (!channels_together) x = i & ((1 << job.column_bits) - 1), c = i >> job.column_bits & ((1 << job.channel_bits) - 1);
    const int y = (tile / across << row_bits) + (i >> (job.channel_bits + job.column_bits));
    x += tile % across << job.column_bits, c += plane % deep << job.channel_bits;
    return {plane / deep, c, y, x, c < job.channels && y < job.height && x < job.width};
}

__device__ __forceinline__ void write_total(const MipGradient& job, const Texel& at, float value) {
    job.total[at.image * job.total_image + at.channel * job.total_channel + at.y * job.total_row + at.x * job.total_column] = value;
}

extern "C" __global__ void __launch_bounds__(256) mip_gradient(const __grid_constant__ MipGradient job) {
    constexpr int EACH = (1 << TILE_BITS) / 256;
    __shared__ float turned[(1 << TILE_BITS) + (1 << TILE_BITS) / 32];  // a word more per 32: no bank conflicts
    const bool together = job.channels_together, turn = together && job.total_channel != 1;
    float total[EACH];
    Texel at[EACH];
#pragma unroll
    for (int k = 0; k < EACH; ++k) total[k] = 0.f, at[k] = texel_of(job, k * 256 + threadIdx.x, together);
    float share = 1.f;
    for (int level = 0; level < job.levels; ++level, share *= 0.25f) {
        const float* from = job.level[level];
        if (!from) continue;
#pragma unroll
        for (int k = 0; k < EACH; ++k)
            if (at[k].inside)
                total[k] += share * from[at[k].image * job.image[level] + at[k].channel * job.channel[level] +
                                         (at[k].y >> level) * job.row[level] + (at[k].x >> level) * job.column[level]];
    }
    if (!turn) {
#pragma unroll
        for (int k = 0; k < EACH; ++k)
            if (at[k].inside) write_total(job, at[k], total[k]);
        return;
    }
    const int channel_mask = (1 << job.channel_bits) - 1, column_mask = (1 << job.column_bits) - 1;
#pragma unroll
    for (int k = 0; k < EACH; ++k) {
        const int i = k * 256 + threadIdx.x, c = i & channel_mask, x = i >> job.channel_bits & column_mask;
        const int to = ((i >> (job.channel_bits + job.column_bits)) << job.channel_bits | c) << job.column_bits | x;
        turned[to + to / 32] = total[k];
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < EACH; ++k) {
        const int i = k * 256 + threadIdx.x;
        const Texel texel = texel_of(job, i, false);
        if (texel.inside) write_total(job, texel, turned[i + i / 32]);
    }
}

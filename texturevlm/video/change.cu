// What changed between a frame and the held one, per tile:
//   change_measure: two differences per tile, and what is needed to tell noise from change
//   change_take:    copies the tiles that change_decide.cu marked into the held frame; writes motion
//   change_post:    copies a note from the host, or a record to it, through pinned memory
#include "change.cuh"
#include "marks.cuh"
#include "scalar.cuh"

constexpr int BLOCK = 4;       // pixels
constexpr int POST_THREADS = 1024;

struct Frame {
    const Turn* turn;
    float* held;  // (3, H, W)
    int height, width, tile;
};

// Four pixels of a row of the frame, of which `count` exist. They are read at most twice, so they leave the cache first (__ldcs),
// and the held frame and the levels stay in it.
__device__ __forceinline__ void load_frame(const Turn& turn, int c, int index, int count, float* to) {
    if (turn.aligned && turn.floats) {
        const float4 four = __ldcs(reinterpret_cast<const float4*>(turn.floats + c * turn.channel + index));
        to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
    } else if (turn.aligned) {
        const unsigned four = __ldcs(reinterpret_cast<const unsigned*>(turn.bytes + c * turn.channel + index));
#pragma unroll
        for (int i = 0; i < BLOCK; ++i) to[i] = (four >> 8 * i & 255) / 255.f;
    } else {
#pragma unroll
        for (int i = 0; i < BLOCK; ++i) {
            const long long at = c * turn.channel + index + i;
            to[i] = i >= count ? 0.f : turn.floats ? __ldg(turn.floats + at) : __ldg(turn.bytes + at) / 255.f;
        }
    }
}

// The same for the held frame.
__device__ __forceinline__ void load_held(const float* held, bool aligned, int count, float* to) {
    if (aligned) {
        const float4 four = *reinterpret_cast<const float4*>(held);
        to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
        return;
    }
#pragma unroll
    for (int i = 0; i < BLOCK; ++i) to[i] = i < count ? held[i] : 0.f;
}

__device__ __forceinline__ void store_four(float* to, bool aligned, int count, const float* four) {
    if (aligned) {
        *reinterpret_cast<float4*>(to) = {four[0], four[1], four[2], four[3]};
        return;
    }
#pragma unroll
    for (int i = 0; i < BLOCK; ++i)
        if (i < count) to[i] = four[i];
}

struct Measure {
    Frame frame;
    float* numbers;  // (NUMBERS, rows, columns)
};

struct Sums {
    float coarse, now, fine, square, moved, before;

    __device__ __forceinline__ void join(const Sums& other) {
        coarse = fmaxf(coarse, other.coarse), now = fmaxf(now, other.now);
        fine += other.fine, square += other.square, moved += other.moved, before += other.before;
    }
    __device__ __forceinline__ Sums of_lane(int away) const {
        return {__shfl_xor_sync(~0u, coarse, away), __shfl_xor_sync(~0u, now, away), __shfl_xor_sync(~0u, fine, away),
                __shfl_xor_sync(~0u, square, away), __shfl_xor_sync(~0u, moved, away), __shfl_xor_sync(~0u, before, away)};
    }
};

// One 4×4 block of one channel. All loads are issued before the first value is used, and those of the held frame before the
// address of the frame is known.
__device__ __forceinline__ Sums measure_block(const Frame& frame, int c, int y, int x, int place) {
    const int rows = min(BLOCK, frame.height - y), columns = min(BLOCK, frame.width - x), start = y * frame.width + x;
    const float* held = frame.held + static_cast<long long>(c) * frame.height * frame.width + start;
    float ours[BLOCK][BLOCK] = {}, theirs[BLOCK][BLOCK] = {}, mean = 0.f, before = 0.f;
#pragma unroll
    for (int i = 0; i < BLOCK; ++i)
        if (i < rows) load_held(held + i * frame.width, frame.width % BLOCK == 0, columns, theirs[i]);
    const Turn turn = *frame.turn;
#pragma unroll
    for (int i = 0; i < BLOCK; ++i)
        if (i < rows) load_frame(turn, c, start + i * frame.width, columns, ours[i]);
    const float last = turn.last[place];
#pragma unroll
    for (int i = 0; i < BLOCK; ++i)
#pragma unroll
        for (int k = 0; k < BLOCK; ++k) ours[i][k] -= theirs[i][k], mean += ours[i][k], before += theirs[i][k];
    const float share = 1.f / (rows * columns);
    mean *= share, before *= share;
    float rest = 0.f;
#pragma unroll
    for (int i = 0; i < BLOCK; ++i)
#pragma unroll
        for (int k = 0; k < BLOCK; ++k)
            if (i < rows && k < columns) rest += (ours[i][k] - mean) * (ours[i][k] - mean);
    turn.blocks[place] = mean;
    return {fabsf(mean), fabsf(mean - last), rest * share, mean * mean, mean, before};
}

// One tile per block, a part of one channel per warp (the number of warps is a multiple of three), a 4×4 block per lane.
extern "C" __global__ void __launch_bounds__(192) change_measure(const __grid_constant__ Measure job) {
    __shared__ Sums sums[6];
    wait_for_previous();
    let_next_start();
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5, side = job.frame.tile / BLOCK;
    const int across = (job.frame.width + BLOCK - 1) / BLOCK, down = (job.frame.height + BLOCK - 1) / BLOCK;
    const int columns = (across + side - 1) / side, tiles = columns * ((down + side - 1) / side);
    const int row = blockIdx.x / columns, first_y = row * side, first_x = (blockIdx.x - row * columns) * side;
    const int high = min(side, down - first_y), wide = min(side, across - first_x), c = warp % 3;
    Sums own = {};
    for (int i = warp / 3 * 32 + lane; i < side * side; i += warps / 3 * 32) {
        const int block_y = i / side, block_x = i - block_y * side, y = first_y + block_y, x = first_x + block_x;
        if (block_y < high && block_x < wide)
            own.join(measure_block(job.frame, c, y * BLOCK, x * BLOCK, (c * down + y) * across + x));
    }
#pragma unroll
    for (int away = 16; away; away /= 2) own.join(own.of_lane(away));
    if (lane == 0) sums[warp] = own;
    __syncthreads();
    if (threadIdx.x) return;
    const float share = 1.f / (high * wide);
    float* numbers = job.numbers + blockIdx.x;
    Sums total = {};
    for (int k = 0; k < 3; ++k) {
        Sums channel = sums[k];
        if (warps > 3) channel.join(sums[k + 3]);
        numbers[(MOVED + k) * tiles] = channel.moved * share, numbers[(BEFORE + k) * tiles] = channel.before * share;
        total.join(channel);
    }
    const float fine = total.fine * share / 3.f;
    numbers[COARSE * tiles] = total.coarse, numbers[NOW * tiles] = total.now, numbers[FINE * tiles] = sqrtf(fine);
    numbers[SQUARE * tiles] = fine + total.square * share / 3.f;
}

// A copy of a few thousand bytes: to start a copy engine would take longer.
struct Post {
    const unsigned* from;
    unsigned* to;
    int words;
};

extern "C" __global__ void __launch_bounds__(POST_THREADS) change_post(const __grid_constant__ Post job) {
    let_next_start();
    for (int i = threadIdx.x; i < job.words; i += POST_THREADS) job.to[i] = job.from[i];
}

struct Take {
    Frame frame;
    Marks marks, either;
    unsigned char* moved;  // (rows, columns): the tiles copied from the previous frame; then those from this one
    float* motion;         // (H, W); null: not wanted
    int motion_aligned;    // whether four pixels can be written at once
};

// One tile per block: a marked tile is copied; the motion of a tile that was copied last time and is not now becomes zero.
extern "C" __global__ void __launch_bounds__(256) change_take(const __grid_constant__ Take job) {
    wait_for_previous();
    let_next_start();  // after the wait: the next kernel reads the marks before it waits (rule 3 of launch.py)
    const Frame& frame = job.frame;
    const int tile = frame.tile, columns = job.marks.columns, row = blockIdx.x / columns;
    const int top = row * tile, left = (blockIdx.x - row * columns) * tile;
    const int bottom = min(top + tile, frame.height), right = min(left + tile, frame.width);
    if (!job.either.near(top, left, bottom, right, 0)) return;
    const Turn turn = *frame.turn;
    const bool marked = job.marks.near(top, left, bottom, right, 0);
    const long long plane = static_cast<long long>(frame.height) * frame.width;
    const int fours = (right - left + BLOCK - 1) / BLOCK;  // groups of four pixels per row
    for (int i = threadIdx.x; i < (bottom - top) * fours; i += 256) {
        const int y = i / fours, x = left + (i - y * fours) * BLOCK, index = (top + y) * frame.width + x;
        const int count = min(BLOCK, right - x);
        float now[3][BLOCK], before[3][BLOCK], moved[BLOCK] = {};
        if (marked) {
#pragma unroll
            for (int c = 0; c < 3; ++c) {
                load_frame(turn, c, index, count, now[c]);
                load_held(frame.held + c * plane + index, turn.aligned, count, before[c]);
            }
#pragma unroll
            for (int c = 0; c < 3; ++c) {
#pragma unroll
                for (int k = 0; k < BLOCK; ++k) moved[k] = fminf(fmaxf(moved[k], fabsf(now[c][k] - before[c][k])), 1.f);
                store_four(frame.held + c * plane + index, turn.aligned, count, now[c]);
            }
        }
        if (job.motion) store_four(job.motion + index, job.motion_aligned, count, moved);
    }
    if (threadIdx.x == 0) job.moved[blockIdx.x] = marked;
    if (!marked) return;
    const int across = (frame.width + BLOCK - 1) / BLOCK, down = (frame.height + BLOCK - 1) / BLOCK;
    const int high_blocks = (bottom - top + BLOCK - 1) / BLOCK;
    for (int i = threadIdx.x; i < 3 * high_blocks * fours; i += 256) {  // a copied tile no longer differs
        const int c = i / (high_blocks * fours), at = i - c * high_blocks * fours, y = at / fours;
        turn.blocks[(c * down + top / BLOCK + y) * across + left / BLOCK + at - y * fours] = 0.f;
    }
}

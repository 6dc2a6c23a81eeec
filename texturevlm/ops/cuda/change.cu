// What changed between a frame and the one that is held (texturevlm/video/change.py is the specification):
//   change_measure: two numbers a tile, and what is needed to tell noise from change
//   change_decide:  one block: learns the noise, marks tiles, sums the marks, tells a cut and a frame that is no image
//   change_take:    the marked tiles of the frame → what is held; and how much they moved
#include "marks.cuh"

constexpr int BLOCK = 4;  // pixels
constexpr float TIMES = 2.2f, RISE = 0.1f, FALL = 0.3f;
constexpr float COARSE_LEAST = 5.f / 255.f, COARSE_MOST = 12.f / 255.f, FINE_LEAST = 4.f / 255.f, FINE_MOST = 12.f / 255.f;
constexpr float GREATEST = 1.1f, CUT_SHARE = 0.5f, CUT_LIKENESS = 0.5f;
constexpr int MOST_TILES = 8192;

// What is known of a tile, each (rows, columns).
enum Number { COARSE, NOW, FINE, SQUARE, MOVED, BEFORE = MOVED + 3, NUMBERS = BEFORE + 3 };
// What the host reads.
enum Word { CHANGED, LIKENESS, GREATEST_SQUARE, CUT, WORDS = 8 };

struct Frame {
    const float* floats;         // (3, H, W), or null
    const unsigned char* bytes;  // the same as 0 … 255
    long long channel;           // from one channel to the next, in elements; 0 for grey
    float* held;                 // (3, H, W)
    int height, width, tile;
    int aligned;                 // whether four pixels of a row can be read at once

    __device__ float at(int c, int index) const {
        return floats ? __ldg(floats + c * channel + index) : __ldg(bytes + c * channel + index) / 255.f;
    }
};

struct Measure {
    Frame frame;
    const float* last;  // (3, h, w): how the blocks of the last frame differed
    float* blocks;      // the same of this one
    float* numbers;     // (NUMBERS, rows, columns)
};

struct Sums {
    float coarse, now, fine, square, moved, before;
};

// Four pixels of a row of the frame and of what is held.
__device__ __forceinline__ void load_four(const Frame& frame, int c, int index, int count, float* ours, float* theirs) {
    const float* held = frame.held + static_cast<long long>(c) * frame.height * frame.width + index;
    if (frame.aligned) {
        const float4 other = *reinterpret_cast<const float4*>(held);
        if (frame.floats) {
            const float4 mine = *reinterpret_cast<const float4*>(frame.floats + c * frame.channel + index);
            ours[0] = mine.x, ours[1] = mine.y, ours[2] = mine.z, ours[3] = mine.w;
        } else {
            const unsigned mine = *reinterpret_cast<const unsigned*>(frame.bytes + c * frame.channel + index);
#pragma unroll
            for (int i = 0; i < BLOCK; ++i) ours[i] = (mine >> 8 * i & 255) / 255.f;
        }
        theirs[0] = other.x, theirs[1] = other.y, theirs[2] = other.z, theirs[3] = other.w;
        return;
    }
#pragma unroll
    for (int i = 0; i < BLOCK; ++i) {
        const bool exists = i < count;
        ours[i] = exists ? frame.at(c, index + i) : 0.f, theirs[i] = exists ? held[i] : 0.f;
    }
}

// One 4×4 block of one channel.
__device__ __forceinline__ Sums measure_block(const Measure& job, int c, int y, int x, int place) {
    const Frame& frame = job.frame;
    const int rows = min(BLOCK, frame.height - y), columns = min(BLOCK, frame.width - x);
    float difference[BLOCK * BLOCK], mean = 0.f, before = 0.f;
#pragma unroll
    for (int i = 0; i < BLOCK; ++i) {
        float ours[BLOCK] = {}, theirs[BLOCK] = {};
        if (i < rows) load_four(frame, c, (y + i) * frame.width + x, columns, ours, theirs);
#pragma unroll
        for (int k = 0; k < BLOCK; ++k) {
            difference[i * BLOCK + k] = ours[k] - theirs[k];
            mean += difference[i * BLOCK + k], before += theirs[k];
        }
    }
    const float share = 1.f / (rows * columns);
    mean *= share, before *= share;
    float rest = 0.f;
#pragma unroll
    for (int i = 0; i < BLOCK * BLOCK; ++i) {
        const float away = difference[i] - mean;
        if (i / BLOCK < rows && i % BLOCK < columns) rest += away * away;
    }
    const float changed = fabsf(mean - job.last[place]);
    job.blocks[place] = mean;
    return {fabsf(mean), changed, rest * share, mean * mean, mean, before};
}

__device__ __forceinline__ Sums over_warp(Sums own) {
#pragma unroll
    for (int step = 16; step; step /= 2) {
        own.coarse = fmaxf(own.coarse, __shfl_xor_sync(~0u, own.coarse, step));
        own.now = fmaxf(own.now, __shfl_xor_sync(~0u, own.now, step));
        own.fine += __shfl_xor_sync(~0u, own.fine, step);
        own.square += __shfl_xor_sync(~0u, own.square, step);
        own.moved += __shfl_xor_sync(~0u, own.moved, step);
        own.before += __shfl_xor_sync(~0u, own.before, step);
    }
    return own;
}

// A block measures a tile; a warp works on one channel at a time, a lane on a 4×4 block of it.
extern "C" __global__ void __launch_bounds__(256) change_measure(const __grid_constant__ Measure job) {
    __shared__ Sums sums[8][3];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, side = job.frame.tile / BLOCK;
    const int across = (job.frame.width + BLOCK - 1) / BLOCK, down = (job.frame.height + BLOCK - 1) / BLOCK;
    const int columns = (across + side - 1) / side, tiles = columns * ((down + side - 1) / side);
    const int row = blockIdx.x / columns, first_y = row * side, first_x = (blockIdx.x - row * columns) * side;
    const int high = min(side, down - first_y), wide = min(side, across - first_x);
    if (threadIdx.x < 24) sums[threadIdx.x / 3][threadIdx.x % 3] = {};
    __syncthreads();
    const int groups = (side * side + 31) / 32;  // of 32 blocks, a channel
    for (int group = warp; group < 3 * groups; group += 8) {
        const int c = group / groups, i = (group - c * groups) * 32 + lane, block_y = i / side, block_x = i - block_y * side;
        Sums own = {};
        if (block_y < high && block_x < wide) {
            const int y = first_y + block_y, x = first_x + block_x;
            own = measure_block(job, c, y * BLOCK, x * BLOCK, (c * down + y) * across + x);
        }
        own = over_warp(own);
        if (lane == 0) {
            Sums& all = sums[warp][c];
            all.coarse = fmaxf(all.coarse, own.coarse), all.now = fmaxf(all.now, own.now);
            all.fine += own.fine, all.square += own.square, all.moved += own.moved, all.before += own.before;
        }
    }
    __syncthreads();
    if (threadIdx.x) return;
    Sums total = {};
    const float share = 1.f / (high * wide);
    float* numbers = job.numbers + blockIdx.x;
    for (int c = 0; c < 3; ++c) {
        float moved = 0.f, before = 0.f;
        for (int i = 0; i < 8; ++i) {
            const Sums& part = sums[i][c];
            total.coarse = fmaxf(total.coarse, part.coarse), total.now = fmaxf(total.now, part.now);
            total.fine += part.fine, total.square += part.square, moved += part.moved, before += part.before;
        }
        numbers[(MOVED + c) * tiles] = moved * share, numbers[(BEFORE + c) * tiles] = before * share;
    }
    const float fine = total.fine * share / 3.f;
    numbers[COARSE * tiles] = total.coarse, numbers[NOW * tiles] = total.now, numbers[FINE * tiles] = sqrtf(fine);
    numbers[SQUARE * tiles] = fine + total.square * share / 3.f;
}

struct Decide {
    const float* numbers;         // (NUMBERS, rows, columns)
    const float *sensor, *flicker;  // (2,), (2, rows, columns): the noise so far
    float *sensor_next, *flicker_next;
    float* threshold;             // (2, rows, columns)
    float* words;                 // (WORDS,)
    unsigned char* mask;          // (rows, columns): what changed
    unsigned char* moved;         // (rows, columns): what was taken over, before and after
    int *total, *either;          // (rows + 1, columns + 1): sums of what is taken over, and of that or what was before
    float rate;                   // how fast the sensor's noise is followed
    int rank, rows, columns;      // rank: of the quiet tile, from 0
    int take;                     // whether marked tiles will be taken over
};

// The sum (or the greatest) over the block, for every thread.
template <class Join>
__device__ float over_block(float value, float* room, Join join) {
#pragma unroll
    for (int step = 16; step; step /= 2) value = join(value, __shfl_xor_sync(~0u, value, step));
    __syncthreads();
    if ((threadIdx.x & 31) == 0) room[threadIdx.x >> 5] = value;
    __syncthreads();
    value = room[0];
    for (int i = 1; i < 8; ++i) value = join(value, room[i]);
    return value;
}

struct Add {
    __device__ float operator()(float a, float b) const { return a + b; }
};
struct Most {  // of which one that is no number is the greatest
    __device__ float operator()(float a, float b) const { return a <= b || b != b ? b : a; }
};

// The values of a rank, from 0, among two sets of floats that are not negative: their bits are ordered as they are. A
// histogram of the first 11 bits, of the next 11 among those that share them, and of the last 9.
constexpr int BINS = 2048;

__device__ void values_of_rank(const float* const (&sets)[2], int count, int rank, unsigned* histogram, float* found) {
    __shared__ int in_warp[2][8], next_rank[2];
    __shared__ unsigned next_prefix[2];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    unsigned prefix[2] = {0, 0};
    int left[2] = {rank, rank};
    for (int pass = 0; pass < 3; ++pass) {
        const int shift = pass == 0 ? 20 : pass == 1 ? 9 : 0, above = pass == 0 ? 31 : pass == 1 ? 20 : 9;
        __syncthreads();
        for (int i = threadIdx.x; i < 2 * BINS; i += 256) histogram[i] = 0;
        __syncthreads();
        for (int i = threadIdx.x; i < count; i += 256)
            for (int k = 0; k < 2; ++k) {
                const unsigned bits = reinterpret_cast<const unsigned*>(sets[k])[i];
                if (bits >> above == prefix[k] >> above) atomicAdd(histogram + k * BINS + (bits >> shift & ((1 << (above - shift)) - 1)), 1u);
            }
        __syncthreads();
        int mine[2] = {0, 0}, upto[2];
        for (int k = 0; k < 2; ++k) {
            for (int i = 0; i < BINS / 256; ++i) mine[k] += histogram[k * BINS + threadIdx.x * (BINS / 256) + i];
            upto[k] = mine[k];
            for (int step = 1; step < 32; step *= 2) {
                const int other = __shfl_up_sync(~0u, upto[k], step);
                if (lane >= step) upto[k] += other;
            }
            if (lane == 31) in_warp[k][warp] = upto[k];
        }
        __syncthreads();
        for (int k = 0; k < 2; ++k) {
            for (int i = 0; i < warp; ++i) upto[k] += in_warp[k][i];
            int at = left[k] - (upto[k] - mine[k]);  // counted from this thread's first bin
            if (at < 0 || at >= mine[k]) continue;
            int bin = threadIdx.x * (BINS / 256);
            for (; at >= static_cast<int>(histogram[k * BINS + bin]); ++bin) at -= histogram[k * BINS + bin];
            next_prefix[k] = prefix[k] | static_cast<unsigned>(bin) << shift, next_rank[k] = at;
        }
        __syncthreads();
        for (int k = 0; k < 2; ++k) prefix[k] = next_prefix[k], left[k] = next_rank[k];
    }
    for (int k = 0; k < 2; ++k) found[k] = __int_as_float(static_cast<int>(prefix[k]));
}

// Correlation of the frame's and the held picture's thumbnails, a texel a tile; 0 where one of them is flat.
__device__ float likeness(const float* numbers, int tiles, float* room) {
    const float *moved = numbers + MOVED * tiles, *before = numbers + BEFORE * tiles;
    float held = 0.f, change = 0.f;
    for (int i = threadIdx.x; i < 3 * tiles; i += 256) held += before[i], change += moved[i];
    const float held_mean = over_block(held, room, Add()) / (3 * tiles), change_mean = over_block(change, room, Add()) / (3 * tiles);
    float old_power = 0.f, new_power = 0.f, both = 0.f;
    for (int i = threadIdx.x; i < 3 * tiles; i += 256) {
        const float old_value = before[i] - held_mean, new_value = old_value + moved[i] - change_mean;
        old_power += old_value * old_value, new_power += new_value * new_value, both += old_value * new_value;
    }
    old_power = over_block(old_power, room, Add()), new_power = over_block(new_power, room, Add());
    return over_block(both, room, Add()) / fmaxf(sqrtf(old_power * new_power), 1e-6f);
}

// Sums of the marks, above and to the left: both tables at once, in the halves of a word.
__device__ void sum_marks(const Decide& job, unsigned* sums) {
    const unsigned rows = job.rows, columns = job.columns, pitch = columns + 1;
    __syncthreads();
    for (unsigned y = threadIdx.x; y < rows; y += 256)
        for (unsigned x = 0, sum = 0; x < columns; ++x) sums[y * columns + x] = sum += sums[y * columns + x];
    __syncthreads();
    for (unsigned x = threadIdx.x; x < columns; x += 256)
        for (unsigned y = 0, sum = 0; y < rows; ++y) sums[y * columns + x] = sum += sums[y * columns + x];
    __syncthreads();
    for (unsigned i = threadIdx.x; i < (rows + 1) * pitch; i += 256) {
        const unsigned y = i / pitch, x = i - y * pitch;
        const unsigned sum = y && x ? sums[(y - 1) * columns + x - 1] : 0;
        job.total[i] = sum & 0xffff, job.either[i] = sum >> 16;
    }
}

extern "C" __global__ void __launch_bounds__(256) change_decide(const __grid_constant__ Decide job) {
    __shared__ unsigned sums[MOST_TILES];  // and before that the histograms
    __shared__ float room[8];
    const int tiles = job.rows * job.columns;
    float most = 0.f;
    for (int i = threadIdx.x; i < tiles; i += 256) most = Most()(most, job.numbers[SQUARE * tiles + i]);
    most = over_block(most, room, Most());
    const bool bad = !(most <= GREATEST);
    float sensor[2] = {0.f, 0.f}, quiet[2];
    if (!bad) {
        const float* const sets[2] = {job.numbers + NOW * tiles, job.numbers + FINE * tiles};
        values_of_rank(sets, tiles, job.rank, sums, quiet);
        for (int k = 0; k < 2; ++k) sensor[k] = job.sensor[k] + job.rate * (quiet[k] - job.sensor[k]);
        if (threadIdx.x == 0) job.sensor_next[0] = sensor[0], job.sensor_next[1] = sensor[1];
    }
    float changed = 0.f;
    for (int i = threadIdx.x; i < tiles; i += 256) {
        bool over = false;
        for (int k = 0; k < 2 && !bad; ++k) {
            const float now = job.numbers[(k ? FINE : NOW) * tiles + i], known = job.flicker[k * tiles + i];
            const float own = known + (now > known ? RISE : FALL) * (now - known), level = TIMES * fmaxf(sensor[k], own);
            const float limit = k ? fminf(fmaxf(level, FINE_LEAST), FINE_MOST) : fminf(fmaxf(level, COARSE_LEAST), COARSE_MOST);
            job.flicker_next[k * tiles + i] = own, job.threshold[k * tiles + i] = limit;
            over |= job.numbers[(k ? FINE : COARSE) * tiles + i] > limit;
        }
        job.mask[i] = over, sums[i] = over, changed += over;
    }
    changed = over_block(changed, room, Add());
    const float alike = bad ? 0.f : likeness(job.numbers, tiles, room);
    const bool cut = changed > CUT_SHARE * tiles && alike < CUT_LIKENESS, take = job.take && !bad && !cut;
    for (int i = threadIdx.x; i < tiles; i += 256) {  // what each thread wrote itself
        const unsigned now = take && sums[i], before = job.moved[i];
        sums[i] = now | (now | (take && before)) << 16;
    }
    sum_marks(job, sums);
    if (threadIdx.x == 0) {
        job.words[CHANGED] = changed, job.words[LIKENESS] = alike;
        job.words[GREATEST_SQUARE] = most, job.words[CUT] = cut;
    }
}

struct Take {
    Frame frame;
    Marks marks, either;
    unsigned char* moved;  // (rows, columns): what was taken over from the frame before; becomes what is now
    float* motion;         // (H, W); null: not wanted
    float* blocks;         // (3, h, w): a taken tile differs no more
};

// A block serves a tile: one that is marked is taken over; one that was so last and is not now, stands still.
extern "C" __global__ void __launch_bounds__(256) change_take(const __grid_constant__ Take job) {
    const Frame& frame = job.frame;
    const int tile = frame.tile, columns = job.marks.columns, row = blockIdx.x / columns;
    const int top = row * tile, left = (blockIdx.x - row * columns) * tile;
    const int bottom = min(top + tile, frame.height), right = min(left + tile, frame.width), wide = right - left;
    if (!job.either.near(top, left, bottom, right, 0)) return;
    const bool marked = job.marks.near(top, left, bottom, right, 0);
    const long long plane = static_cast<long long>(frame.height) * frame.width;
    for (int i = threadIdx.x; i < (bottom - top) * wide; i += 256) {
        const int y = i / wide, index = (top + y) * frame.width + left + i - y * wide;
        float moved = 0.f;
        for (int c = 0; c < 3 && marked; ++c) {
            float* held = frame.held + c * plane + index;
            const float now = frame.at(c, index);
            moved = fmaxf(moved, fabsf(now - *held));
            *held = now;
        }
        if (job.motion) job.motion[index] = fminf(moved, 1.f);
    }
    if (threadIdx.x == 0) job.moved[blockIdx.x] = marked;
    if (!marked) return;
    const int across = (frame.width + BLOCK - 1) / BLOCK, down = (frame.height + BLOCK - 1) / BLOCK;
    const int high_blocks = (bottom - top + BLOCK - 1) / BLOCK, wide_blocks = (wide + BLOCK - 1) / BLOCK;
    for (int i = threadIdx.x; i < 3 * high_blocks * wide_blocks; i += 256) {
        const int c = i / (high_blocks * wide_blocks), at = i - c * high_blocks * wide_blocks, y = at / wide_blocks;
        job.blocks[(c * down + top / BLOCK + y) * across + left / BLOCK + at - y * wide_blocks] = 0.f;
    }
}

// From the measurements of all tiles, each in one block:
//   change_decide: which tiles changed, and their summed-area table; whether the frame is a cut, or not finite
//   change_learn:  updates the estimate of the sensor's noise, and correlates the frame with the held one
#include "change.cuh"
#include "scalar.cuh"
#include "warp.cuh"

constexpr float TIMES = 2.2f, RISE = 0.1f, FALL = 0.3f;
constexpr float COARSE_LEAST = 5.f / 255.f, COARSE_MOST = 12.f / 255.f, FINE_LEAST = 4.f / 255.f, FINE_MOST = 12.f / 255.f;
constexpr float GREATEST = 1.1f, CUT_SHARE = 0.5f, CUT_LIKENESS = 0.5f;
constexpr int MOST_TILES = 8192;

// What the host reads.
enum Word { CHANGED, LIKENESS, GREATEST_SQUARE, CUT, WORDS = 8 };

struct Decide {
    const Turn* turn;
    const float* numbers;      // (NUMBERS, rows, columns)
    float* threshold;          // (2, rows, columns)
    float* words;              // (WORDS,)
    unsigned char* mask;       // (rows, columns): what changed
    unsigned char* moved;      // (rows, columns): the tiles copied from the previous frame
    int *total, *either;       // (rows + 1, columns + 1): summed-area tables of the tiles to copy, and of those copied now or before
    int rows, columns;
};

constexpr int DECIDE_THREADS = 1024;

// Reduces each of COUNT numbers over the block, for every thread; join(k, a, b) joins two of the k-th.
template <int COUNT, class Number, class Join>
__device__ __forceinline__ void over_block(Number (&values)[COUNT], Number (*room)[33], Join join) {
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
#pragma unroll
    for (int step = 16; step; step /= 2)
#pragma unroll
        for (int k = 0; k < COUNT; ++k) values[k] = join(k, values[k], __shfl_xor_sync(~0u, values[k], step));
    __syncthreads();
    if (lane == 0)
        for (int k = 0; k < COUNT; ++k) room[k][warp] = values[k];
    __syncthreads();
    if (warp < COUNT) {  // a warp for each
        Number value = room[warp][lane];
#pragma unroll
        for (int step = 16; step; step /= 2) value = join(warp, value, __shfl_xor_sync(~0u, value, step));
        if (lane == 0) room[warp][32] = value;
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < COUNT; ++k) values[k] = room[k][32];
}

constexpr int HALF = DECIDE_THREADS / 2, BINS = 2048, OWN_BINS = BINS / HALF, HALF_WARPS = HALF / 32, AT_ONCE = 4;
constexpr int SHIFTS[] = {20, 10, 0};  // the first bit of each digit, the highest first, without the sign

// Radix select: the value of a rank, from 0, in each of two sets of floats. They are not negative, so their bits are ordered as
// the values are. Half of the block counts each set, digit by digit. room: 2 · BINS numbers.
__device__ void values_of_rank(const float* const (&sets)[2], int count, int rank, unsigned* room, float* found) {
    __shared__ unsigned before[2][HALF_WARPS], digit[2], rest[2], whole[2];
    const int half = threadIdx.x / HALF, own = threadIdx.x % HALF, lane = threadIdx.x & 31, warp = own / 32;
    const unsigned* values = reinterpret_cast<const unsigned*>(half ? sets[1] : sets[0]);
    unsigned* bins = room + half * BINS;
    unsigned known = 0, left = rank;
#pragma unroll 1
    for (int step = 0; step < 3; ++step) {
        const int shift = SHIFTS[step], above = step ? SHIFTS[step - 1] : 31;
        for (int i = own; i < BINS; i += HALF) bins[i] = 0;
        __syncthreads();
#pragma unroll 1
        for (int start = own; start < count + own; start += HALF * AT_ONCE) {
            unsigned some[AT_ONCE];  // beyond the end all bits are set, so that it is never counted
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i) some[i] = start + i * HALF < count ? values[start + i * HALF] : ~0u;
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i) {
                const bool counts = some[i] >> above == known;
                const unsigned bin = some[i] >> shift & (1u << above - shift) - 1;
                // Values of a still picture are equal: those in the first lane's bin are counted at once.
                const unsigned common = __shfl_sync(~0u, bin, 0), alike = __ballot_sync(~0u, counts && bin == common);
                if (lane == 0 && alike) atomicAdd(bins + common, static_cast<unsigned>(__popc(alike)));
                if (counts && bin != common) atomicAdd(bins + bin, 1u);
            }
        }
        __syncthreads();
        unsigned each[OWN_BINS], total = 0;
#pragma unroll
        for (int i = 0; i < OWN_BINS; ++i) total += each[i] = bins[own * OWN_BINS + i];
        const unsigned sum = sum_to_lane(total);
        if (lane == 31) before[half][warp] = sum;
        __syncthreads();
        unsigned smaller = sum - total;
        for (int i = 0; i < warp; ++i) smaller += before[half][i];
#pragma unroll
        for (int i = 0; i < OWN_BINS; ++i) {
            if (left >= smaller && left < smaller + each[i]) digit[half] = own * OWN_BINS + i, rest[half] = left - smaller;
            smaller += each[i];
        }
        __syncthreads();
        known = known << above - shift | digit[half], left = rest[half];
    }
    if (own == 0) whole[half] = known;
    __syncthreads();
    for (int k = 0; k < 2; ++k) found[k] = __int_as_float(static_cast<int>(whole[k]));
}

// Correlation of thumbnails of the frame and the held one, one texel per tile; 0 if one of them is flat. In double precision,
// so that one pass is enough.
__device__ float likeness(const float* numbers, int tiles, double (*room)[33]) {
    const float *moved = numbers + MOVED * tiles, *before = numbers + BEFORE * tiles;
    double sums[5] = {};
#pragma unroll 6
    for (int i = threadIdx.x; i < 3 * tiles; i += DECIDE_THREADS) {
        const double old_value = before[i], new_value = old_value + moved[i];
        sums[0] += old_value, sums[1] += new_value;
        sums[2] += old_value * old_value, sums[3] += new_value * new_value, sums[4] += old_value * new_value;
    }
    over_block(sums, room, [](int, double a, double b) { return a + b; });
    const double share = 1. / (3 * tiles), both = sums[4] - sums[0] * sums[1] * share;
    const double old_power = sums[2] - sums[0] * sums[0] * share, new_power = sums[3] - sums[1] * sums[1] * share;
    return static_cast<float>(both / fmax(sqrt(fmax(old_power, 0.) * fmax(new_power, 0.)), 1e-6));
}

// Prefix sums of lines, one line per warp; the numbers of a line are `step` apart.
__device__ void sum_lines(unsigned* sums, int lines, int next_line, int count, int step) {
    const int lane = threadIdx.x & 31;
#pragma unroll 1
    for (int line = threadIdx.x >> 5; line < lines; line += DECIDE_THREADS / 32) {
        unsigned before = 0;
#pragma unroll 1
        for (int start = 0; start < count; start += 32) {
            unsigned* at = sums + line * next_line + min(start + lane, count - 1) * step;
            const unsigned sum = before + sum_to_lane(start + lane < count ? *at : 0u);
            if (start + lane < count) *at = sum;
            before = __shfl_sync(~0u, sum, 31);
        }
    }
}

// Both summed-area tables at once, in the two halves of a word.
__device__ void sum_marks(const Decide& job, unsigned* sums) {
    const int rows = job.rows, columns = job.columns, pitch = columns + 1;
    __syncthreads();
    sum_lines(sums, rows, columns, columns, 1);
    __syncthreads();
    sum_lines(sums, columns, 1, rows, columns);
    __syncthreads();
#pragma unroll 1
    for (int i = threadIdx.x; i < (rows + 1) * pitch; i += DECIDE_THREADS) {
        const int y = i / pitch, x = i - y * pitch;
        const unsigned sum = y && x ? sums[(y - 1) * columns + x - 1] : 0;
        job.total[i] = sum & 0xffff, job.either[i] = sum >> 16;
    }
}

enum Counted { TILES_CHANGED, MOST_SQUARE, COUNTED };

// The greater of two; NaN is greater than everything.
__device__ __forceinline__ float greater(float a, float b) { return a <= b || b != b ? b : a; }

extern "C" __global__ void __launch_bounds__(DECIDE_THREADS) change_decide(const __grid_constant__ Decide job) {
    __shared__ unsigned sums[MOST_TILES];
    __shared__ float room[COUNTED][33];
    __shared__ double wide_room[5][33];
    wait_for_previous();
    let_next_start();
    const Turn turn = *job.turn;
    const int tiles = job.rows * job.columns;
    const float sensor[2] = {turn.sensor[0], turn.sensor[1]};
    float counted[COUNTED] = {};
#pragma unroll 2
    for (int i = threadIdx.x; i < tiles; i += DECIDE_THREADS) {
        bool over = false;
        counted[MOST_SQUARE] = greater(counted[MOST_SQUARE], job.numbers[SQUARE * tiles + i]);
#pragma unroll
        for (int k = 0; k < 2; ++k) {
            const float now = job.numbers[(k ? FINE : NOW) * tiles + i], known = __ldg(turn.flicker + k * tiles + i);
            const float differs = job.numbers[(k ? FINE : COARSE) * tiles + i];
            const float own = known + (now > known ? RISE : FALL) * (now - known), level = TIMES * fmaxf(sensor[k], own);
            const float limit = k ? fminf(fmaxf(level, FINE_LEAST), FINE_MOST) : fminf(fmaxf(level, COARSE_LEAST), COARSE_MOST);
            turn.flicker_next[k * tiles + i] = own, job.threshold[k * tiles + i] = limit;
            over |= differs > limit;
        }
        sums[i] = over, counted[TILES_CHANGED] += over;
    }
    over_block(counted, room, [](int k, float a, float b) { return k == MOST_SQUARE ? greater(a, b) : a + b; });
    const bool image = counted[MOST_SQUARE] <= GREATEST, much = counted[TILES_CHANGED] > CUT_SHARE * tiles;
    const bool cut = image && much && likeness(job.numbers, tiles, wide_room) < CUT_LIKENESS;
    const bool take = turn.take && image && !cut;
#pragma unroll 2
    for (int i = threadIdx.x; i < tiles; i += DECIDE_THREADS) {  // each thread reads what it wrote itself
        const unsigned now = take && sums[i], before = job.moved[i];
        job.mask[i] = image && sums[i];
        sums[i] = now | (now | (take && before)) << 16;
    }
    sum_marks(job, sums);
    if (threadIdx.x) return;
    job.words[CHANGED] = counted[TILES_CHANGED], job.words[GREATEST_SQUARE] = counted[MOST_SQUARE], job.words[CUT] = cut;
}

struct Learn {
    const Turn* turn;
    const float* numbers;  // (NUMBERS, tiles)
    float* words;          // (WORDS,)
    int rank, tiles;       // rank: of the quiet tile, from 0
};

// Not needed for this frame: the sensor's noise, which the next frame is judged by, and the correlation of the two pictures.
extern "C" __global__ void __launch_bounds__(DECIDE_THREADS) change_learn(const __grid_constant__ Learn job) {
    __shared__ unsigned bins[2 * BINS];
    __shared__ double room[5][33];
    const Turn turn = *job.turn;
    const float* const sets[2] = {job.numbers + NOW * job.tiles, job.numbers + FINE * job.tiles};
    float quiet[2];
    values_of_rank(sets, job.tiles, job.rank, bins, quiet);
    const float alike = likeness(job.numbers, job.tiles, room);
    if (threadIdx.x) return;
    for (int k = 0; k < 2; ++k) turn.sensor_next[k] = turn.sensor[k] + turn.rate * (quiet[k] - turn.sensor[k]);
    job.words[LIKENESS] = alike;
}

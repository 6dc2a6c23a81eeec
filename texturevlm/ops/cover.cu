// Square covers of the inked cells (texturevlm/allocate/layers.py). All attempts that a bisection could ask for run at once,
// one per block; the bisection then walks through the results.
//   cover_begin:  packs ink into bits, 32 cells per word; clears counters
//   cover_spans:  the number of squares of each span that cover the ink; then what a fine layer left; then the blank cells
//   cover_gains:  the gain of every cell from each scale of the fine layer, and a histogram of gains
//   cover_reach:  whether a fine layer over the best cells and a coarse layer over the rest fit the budget. A round tries
//                 `parts` shares at once, between two of the round before; the last also computes their worth
//   cover_tokens: writes the chosen squares as footprints; cuts the best in two while tokens are left
// Sums are of integers, so their order does not matter. The reference does all float operations in the same order.
#include "cover.cuh"

constexpr int KEYS = 4096, LEAST = 0x3F80 - 1;  // of gains, see CellRanking in allocate/layers.py
constexpr int BISECTIONS = 10;
constexpr int GAINS_WORDS = 64;  // words per block of cover_gains
constexpr int RUN = 16;          // cells with one maximum, as in allocate/runs.py; their keys are one sector of 32 bytes
constexpr float UNIT = 1073741824.f;
constexpr double ROUNDING = 1.001;  // allocate/footprints.py

extern "C" __global__ void __launch_bounds__(256) cover_begin(const __grid_constant__ Cover job) {
    let_next_start();
    const int words = words_of(job), lane = threadIdx.x % 32;
    const long long all = static_cast<long long>(job.batch) * job.rows * words, step = gridDim.x * 8LL;
    for (long long i = blockIdx.x * 8LL + threadIdx.x / 32; i < all; i += step) {
        const int column = static_cast<int>(i % words) * 32 + lane;
        const bool marked = column < job.columns && job.ink[i / words * job.columns + column];
        const unsigned bits = __ballot_sync(~0u, marked);
        if (lane == 0) job.bits[i] = bits;
    }
    const long long keys = static_cast<long long>(job.batch) * job.scales * KEYS;
    for (long long i = blockIdx.x * 256LL + threadIdx.x; i < keys; i += gridDim.x * 256LL) job.histogram[i] = 0;
    for (long long i = blockIdx.x * 256LL + threadIdx.x; i < job.batch * (job.scales + 1); i += gridDim.x * 256LL)
        job.totals[i] = 0;
}

// One span of one image per block.
extern "C" __global__ void __launch_bounds__(256) cover_spans(const __grid_constant__ Cover job) {
    __shared__ Mask mask;
    let_next_start();
    wait_for_previous();
    const int image = blockIdx.y, span = job.finest + blockIdx.x;
    if (is_skipped(job, image)) return;
    int most = job.budget;
    if (job.stage == OF_INK) {
        const bool inked = load_ink(job, image, mask);
        if (threadIdx.x == 0 && blockIdx.x == 0) job.inked[image] = inked;
    } else {
        const Choice fine = choice_of(job, image);
        if (job.stage == OF_REST) {
            if (fine.scale < 0 || span < fine.span || span > fine.floor) return;
            most -= fine.count;
            load_ink(job, image, mask);
            paint(job, mask, fine.squares, fine.count, fine.span, false);
        } else {
            const Choice coarse = below(job, image, fine);
            most = left_for_blank(job, fine, coarse);
            if (most <= 0) return;
            fill(job, mask, true);
            paint(job, mask, fine.squares, fine.count, fine.span, false);
            paint(job, mask, coarse.squares, coarse.count, coarse.span, false);
        }
    }
    if (threadIdx.x >= 32) return;
    const long long listed = stage_place(job, job.stage == OF_BLANK, image) + blockIdx.x;
    const int found = shelves(mask, job.rows, words_of(job), span, most, job.squares + listed * job.budget);
    if (threadIdx.x == 0) job.counts[stage_place(job, job.stage, image) + blockIdx.x] = found;
}

// The expected legible mass of a cell, in units of 1 / UNIT.
__device__ __forceinline__ int worth_of(float mass, float legible_scale, float scale) {
    const float ratio = scale / legible_scale, square = ratio * ratio;
    const float lost = square * square * ratio * sqrtf(ratio);  // to the power of STEEPNESS (ops/legibility.py)
    return __float2int_rn(mass * (1.f / __fadd_rn(1.f, lost)) * UNIT);
}

__device__ __forceinline__ int warp_sum(int value) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(~0u, value, step);
    return value;
}

__device__ __forceinline__ int run_max(int value) {
#pragma unroll
    for (int step = RUN / 2; step > 0; step /= 2) value = max(value, __shfl_xor_sync(~0u, value, step));
    return value;
}

// GAINS_WORDS words of one image at one scale per block.
extern "C" __global__ void __launch_bounds__(256) cover_gains(const __grid_constant__ Cover job) {
    __shared__ int bins[KEYS];
    let_next_start();
    for (int i = threadIdx.x; i < KEYS; i += 256) bins[i] = 0;
    wait_for_previous();
    const int image = blockIdx.y, scale = blockIdx.x % job.scales, words = words_of(job), lane = threadIdx.x % 32;
    if (is_skipped(job, image)) return;
    const Rung step = rung_of(job, image, scale);
    if (!step.span) return;
    const float fine = static_cast<float>(width_of(job, step.span) / job.patch);
    const float coarse = static_cast<float>(width_of(job, step.floor) / job.patch);
    const bool inked = job.inked[image];
    const long long cells = static_cast<long long>(image) * job.rows * job.columns;
    const long long place = scale_place(job, image, scale) * job.rows * words;
    const int start = blockIdx.x / job.scales * GAINS_WORDS;
    int seen_fine = 0, seen_coarse = 0;
    for (int i = start + threadIdx.x / 32; i < min(start + GAINS_WORDS, job.rows * words); i += 8) {
        const int column = i % words * 32 + lane;
        int gain = 0, key = 0;
        if (column < job.columns) {
            const long long cell = cells + i / words * job.columns + column;
            if (!inked || job.ink[cell]) {
                const float mass = job.mass[cell], legible_scale = job.legible_scale[cell];
                const int more = worth_of(mass, legible_scale, fine), less = worth_of(mass, legible_scale, coarse);
                gain = more - less, seen_fine += more, seen_coarse += less;
                key = max((__float_as_int(static_cast<float>(gain)) >> 16) - LEAST, 0);
                if (key) atomicAdd(&bins[key], 1);
            }
        }
        job.keys[(place + i) * 32 + lane] = key, job.gains[(place + i) * 32 + lane] = gain;
        const int highest = run_max(key);
        if (lane % RUN == 0) job.highest[2 * (place + i) + lane / RUN] = highest;
    }
    int* totals = job.totals + static_cast<long long>(image) * (job.scales + 1);
    seen_fine = warp_sum(seen_fine), seen_coarse = warp_sum(seen_coarse);
    if (lane == 0) {
        atomicAdd(&totals[scale], seen_coarse);
        if (scale == 0) atomicAdd(&totals[job.scales], seen_fine);
    }
    __syncthreads();
    int* histogram = job.histogram + scale_place(job, image, scale) * KEYS;
    for (int i = threadIdx.x; i < KEYS; i += 256)
        if (bins[i]) atomicAdd(&histogram[i], bins[i]);
}

struct End {
    int key, cell;  // the cells with a greater key, and those with this key before `cell`
};

// The end of the best share / ALL of the cells that gain anything. Called by the whole block, of at most 256 threads.
__device__ End end_of(const Cover& job, const int* histogram, int share) {
    __shared__ int sums[256], owner, wanted;  // the thread in whose keys it ends, and the cells taken from those
    __shared__ End found;
    const int mine = KEYS / blockDim.x, group = blockDim.x / 32;
    const int4* bins = reinterpret_cast<const int4*>(histogram + threadIdx.x * mine);
    int sum = 0;
#pragma unroll 4
    for (int i = 0; i < mine / 4; ++i) sum += bins[i].x + bins[i].y + bins[i].z + bins[i].w;
    sums[threadIdx.x] = sum;
    if (threadIdx.x == 0) found = {KEYS, 0}, owner = -1;
    __syncthreads();
    if (threadIdx.x < 32) {
        int own = 0;
        for (int i = 0; i < group; ++i) own += sums[threadIdx.x * group + i];
        int from = own;  // the cells with this key or a greater one
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            const int other = __shfl_down_sync(~0u, from, step);
            if (threadIdx.x + step < 32) from += other;
        }
        const int all = __shfl_sync(~0u, from, 0);
        const int count = static_cast<int>(static_cast<long long>(share) * all >> BISECTIONS);
        int left = count - (from - own);
        if (left > 0 && left <= own) {
            int thread = threadIdx.x * group + group - 1;
            while (sums[thread] < left) left -= sums[thread--];
            owner = thread, wanted = left;
        }
    }
    __syncthreads();
    if (threadIdx.x == owner) {
        int left = wanted, key = (threadIdx.x + 1) * mine - 1;
        while (histogram[key] < left) left -= histogram[key--];
        const long long cells = static_cast<long long>(job.rows) * job.columns;
        found = {key, static_cast<int>(left * cells / histogram[key])};
    }
    __syncthreads();
    return found;
}

// One share at one scale of one image per block.
extern "C" __global__ void __launch_bounds__(256) cover_reach(const __grid_constant__ Cover job) {
    __shared__ Mask mask;
    __shared__ int found, taken, read;
    let_next_start();
    wait_for_previous();
    const int image = blockIdx.y, scale = blockIdx.x / job.parts, slot = blockIdx.x % job.parts;
    const int words = words_of(job), lane = threadIdx.x % 32;
    if (is_skipped(job, image)) return;
    const Rung step = rung_of(job, image, scale);
    if (!step.span) return;
    const long long place = scale_place(job, image, scale);
    int *answer = answers_of(job, place, job.round), step_of_share = ALL;
    const bool last = job.round == job.rounds - 1;
    for (int i = 0; i <= job.round; ++i) step_of_share /= job.parts;
    const int first = first_share(job, place, job.round);
    int share = first + (last ? slot : (slot + 1) * step_of_share);
    if (first == ALL) share = last && slot == 0 ? ALL : 0;                   // nothing else need be tried
    else if (!last && job.round > 0 && slot == job.parts - 1) share = 0;  // known not to fit
    if (share == 0) {
        if (threadIdx.x == 0) answer[slot] = last ? -1 : 0;
        return;
    }
    unsigned* squares = job.above + (place * job.parts + slot) * job.budget;  // of the last round, the others' are overwritten
    if (threadIdx.x == 0) taken = read = 0;
    const End end = end_of(job, job.histogram + place * KEYS, share);
    int own_taken = 0, own_read = 0;
    for (int row = threadIdx.x / 32; row < job.rows; row += blockDim.x / 32) {
        const long long first = (place * job.rows + row) * words;
        const unsigned short *keys = job.keys + first * 32 + lane, *highest = job.highest + 2 * first + lane / RUN;
        int key[MOST_WORDS];
        // No end has the key 0, so a run that is not read has no cell above it.
#pragma unroll
        for (int word = 0; word < MOST_WORDS; ++word) {
            const bool passes = word < words && highest[2 * word] >= end.key;
            key[word] = passes ? keys[word * 32] : 0;
            if (job.cuts) own_read += passes && word * 32 + lane < job.columns;
        }
#pragma unroll
        for (int word = 0; word < MOST_WORDS; ++word) {
            if (word >= words) break;
            const bool before = row * job.columns + word * 32 + lane < end.cell;
            const unsigned bits = __ballot_sync(~0u, key[word] > end.key || (key[word] == end.key && before));
            if (lane == 0) mask[row * MOST_WORDS + word] = bits, own_taken += __popc(bits);
        }
    }
    if (job.cuts) {
        own_read = warp_sum(own_read);
        if (lane == 0) atomicAdd(&taken, own_taken), atomicAdd(&read, own_read);
    }
    __syncthreads();
    if (job.cuts && threadIdx.x == 0) {
        int* cut = job.cuts + 2 * (answer + slot - job.reached);
        cut[0] = taken, cut[1] = read;
    }
    if (threadIdx.x < 32) {
        const int count = shelves(mask, job.rows, words, step.span, job.budget, squares);
        if (lane == 0) found = count;
    }
    __syncthreads();
    const int above = found;
    bool fits = above <= job.budget;
    if (fits) {
        load_ink(job, image, mask);
        paint(job, mask, squares, above, step.span, false);
        if (threadIdx.x < 32) {
            const int count = shelves(mask, job.rows, words, step.floor, job.budget - above, nullptr);
            if (lane == 0) found = count;
        }
        __syncthreads();
        fits = above + found <= job.budget;
    }
    if (!last || !fits) {
        if (threadIdx.x == 0) answer[slot] = last ? -1 : fits;
        return;
    }
    fill(job, mask, false);
    paint(job, mask, squares, above, step.span, true);
    int worth = 0;
    for (int row = threadIdx.x / 32; row < job.rows; row += blockDim.x / 32) {
        const int* gains = job.gains + (place * job.rows + row) * words * 32 + lane;
        for (int word = 0; word < words; ++word)
            if (mask[row * MOST_WORDS + word] >> lane & 1) worth += gains[word * 32];
    }
    if (threadIdx.x == 0) found = job.totals[image * (job.scales + 1) + scale];
    __syncthreads();
    worth = warp_sum(worth);
    if (lane == 0) atomicAdd(&found, worth);
    __syncthreads();
    if (threadIdx.x == 0) answer[slot] = found, job.laid[place * job.parts + slot] = above;
}

struct Tokens {
    double x0[MOST_TOKENS], y0[MOST_TOKENS], x1[MOST_TOKENS], y1[MOST_TOKENS];
    float score[MOST_TOKENS];
    short number[MOST_TOKENS];  // of equal scores the lowest is cut first
    bool open[MOST_TOKENS];     // is coarser than the pixels
    int count;
};

// The start of a square's footprint along an axis: centred on its cells, moved inside the image if it fits.
__device__ __forceinline__ double start_of(int first, int span, double cell, double side, int extent) {
    if (side >= extent) return (extent - side) * 0.5;
    const double start = __dmul_rn(first, cell) - (side - __dmul_rn(span, cell)) * 0.5;
    return fmin(fmax(start, 0.0), extent - side);
}

__device__ __forceinline__ void open_up(const Cover& job, Tokens& tokens, int slot) {
    const double wide = tokens.x1[slot] - tokens.x0[slot], tall = tokens.y1[slot] - tokens.y0[slot];
    tokens.open[slot] = fmax(wide, tall) > job.patch * ROUNDING;
}

// Squares as tokens with the mass of their cells, one warp each.
__device__ void lay(const Cover& job, Tokens& tokens, int image, int start, const Choice& layer) {
    const int lane = threadIdx.x % 32;
    const float* mass = job.mass + static_cast<long long>(image) * job.rows * job.columns;
    for (int i = threadIdx.x / 32; i < layer.count; i += 8) {
        const unsigned square = layer.squares[i];
        const int row = square >> 16, column = square & 0xFFFF;
        const int tall = min(layer.span, job.rows - row), wide = min(layer.span, job.columns - column);
        int sum = 0;
        for (int cell = lane; cell < tall * wide; cell += 32)
            sum += __float2int_rn(mass[(row + cell / wide) * job.columns + column + cell % wide] * UNIT);
        sum = warp_sum(sum);
        if (lane == 0) {
            const int slot = start + i;
            const double side = width_of(job, layer.span);
            tokens.x0[slot] = start_of(column, layer.span, job.cell_width, side, job.width);
            tokens.y0[slot] = start_of(row, layer.span, job.cell_height, side, job.height);
            tokens.x1[slot] = tokens.x0[slot] + side, tokens.y1[slot] = tokens.y0[slot] + side;
            tokens.score[slot] = static_cast<float>(sum) / UNIT, tokens.number[slot] = slot;
            open_up(job, tokens, slot);
        }
    }
}

// Cuts the best token in two until the budget is used or all are as fine as the pixels. Called by one warp.
__device__ int cut_in_two(const Cover& job, Tokens& tokens, int count) {
    const int lane = threadIdx.x % 32;
    for (int next = count; count < job.budget; next += 2) {
        float best = -1.f;
        int number = 2 * MOST_TOKENS, slot = -1;
        for (int i = lane; i < count; i += 32)
            if (tokens.open[i] && (tokens.score[i] > best || (tokens.score[i] == best && tokens.number[i] < number)))
                best = tokens.score[i], number = tokens.number[i], slot = i;
#pragma unroll
        for (int step = 16; step > 0; step /= 2) {
            const float score = __shfl_xor_sync(~0u, best, step);
            const int theirs = __shfl_xor_sync(~0u, number, step), other = __shfl_xor_sync(~0u, slot, step);
            if (score > best || (score == best && theirs < number)) best = score, number = theirs, slot = other;
        }
        if (slot < 0) break;
        __syncwarp();  // all lanes have read what lane 0 now replaces
        if (lane == 0) {
            const double x0 = tokens.x0[slot], y0 = tokens.y0[slot], x1 = tokens.x1[slot], y1 = tokens.y1[slot];
            const double wide = x1 - x0, tall = y1 - y0, patch = job.patch;
            const bool across = wide * 1.5 >= tall && wide > patch * ROUNDING;
            const double part = fmax((across ? wide : tall) * 0.5, patch);
            tokens.x0[count] = across ? x1 - part : x0, tokens.y0[count] = across ? y0 : y1 - part;
            tokens.x1[count] = x1, tokens.y1[count] = y1;
            if (across) tokens.x1[slot] = x0 + part;
            else tokens.y1[slot] = y0 + part;
            tokens.score[slot] = tokens.score[count] = best * 0.5f;
            tokens.number[slot] = next, tokens.number[count] = next + 1;
            open_up(job, tokens, slot), open_up(job, tokens, count);
        }
        ++count;
        __syncwarp();
    }
    return count;
}

// One image per block.
extern "C" __global__ void __launch_bounds__(256) cover_tokens(const __grid_constant__ Cover job) {
    __shared__ Tokens tokens;
    wait_for_previous();
    const int image = blockIdx.x;
    int count = 0;
    if (!is_skipped(job, image)) {
        const Choice fine = choice_of(job, image), coarse = below(job, image, fine);
        Choice blank = {-1, job.finest, 0, 0, nullptr};
        const int left = left_for_blank(job, fine, coarse);
        if (left > 0) {
            const int* table = table_of(job, OF_BLANK, image);
            blank.span = finest_of(job, table, left), blank.count = table[blank.span - job.finest];
            blank.squares = job.squares + (stage_place(job, 1, image) + blank.span - job.finest) * job.budget;
        }
        lay(job, tokens, image, 0, fine);
        lay(job, tokens, image, fine.count, coarse);
        lay(job, tokens, image, fine.count + coarse.count, blank);
        __syncthreads();
        if (threadIdx.x < 32) {
            count = cut_in_two(job, tokens, fine.count + coarse.count + blank.count);
            if (threadIdx.x == 0) tokens.count = count;
        }
        __syncthreads();
        count = tokens.count;
    }
    for (int slot = threadIdx.x; slot < job.budget; slot += 256) {
        double x0 = 0, y0 = 0, x1 = job.patch, y1 = job.patch;
        int rank = slot;
        float score = 0.f;
        if (slot < count) {
            x0 = tokens.x0[slot], y0 = tokens.y0[slot], x1 = tokens.x1[slot], y1 = tokens.y1[slot];
            score = tokens.score[slot], rank = 0;
            for (int other = 0; other < count; ++other)
                rank += tokens.score[other] > score ||
                        (tokens.score[other] == score && tokens.number[other] < tokens.number[slot]);
        }
        const long long to = static_cast<long long>(image) * job.budget + rank;
        job.centre[2 * to] = static_cast<float>((x0 + x1) * 0.5), job.centre[2 * to + 1] = static_cast<float>((y0 + y1) * 0.5);
        job.ddx[2 * to] = static_cast<float>((x1 - x0) / job.patch), job.ddx[2 * to + 1] = 0.f;
        job.ddy[2 * to] = 0.f, job.ddy[2 * to + 1] = static_cast<float>((y1 - y0) / job.patch);
        job.score[to] = score, job.valid[to] = slot < count;
    }
}

// Shared by the kernels of cover.cu: parameters, bit masks of cells, square covers, and how to read intermediate results.
// Blocks have any number of warps. One warp of a block searches squares, so that small blocks keep more of a GPU busy.
#pragma once
#include "scalar.cuh"

constexpr int MOST_CELLS = 288, MOST_WORDS = MOST_CELLS / 32, MOST_TOKENS = 1024, MOST_SCALES = 32;
constexpr int ALL = 1024;  // shares that a bisection tells apart
enum Stage { OF_INK, OF_REST, OF_BLANK };

struct Cover {
    const float *mass, *legible_scale; // (B, h, w)
    const unsigned char *ink;          // (B, h, w)
    const unsigned char *skipped;      // (B,), images that get no tokens; null: none
    unsigned* bits;                    // (B, h, words)
    int* inked;                        // (B,): whether there is ink; in a blank image all cells count as ink
    int* counts;                       // (3, B, spans): squares, by stage
    unsigned* squares;                 // (2, B, spans, K): row << 16 | column; of the ink or the rest, and of the blank cells
    unsigned short* keys;              // (B, scales, h, 32 · words)
    unsigned short* highest;           // (B, scales, h, 2 · words): the greatest key of each run, so that others are not read
    int* gains;                        // (B, scales, h, 32 · words)
    int* histogram;                    // (B, scales, KEYS)
    int* totals;                       // (B, scales + 1): worth of the coarse layer alone; last: worth of one layer
    int* reached;                      // (rounds, B, scales, parts): whether a share fits; in the last round its worth, or −1
    int* laid;                         // (B, scales, parts): squares of the fine layer, in the last round
    unsigned* above;                   // (B, scales, parts, K)
    int* cuts;                         // (rounds, B, scales, parts, 2): cells that a share takes, and cells read; null: not counted
    float *centre, *ddx, *ddy;         // (B, K, 2)
    float* score;                      // (B, K)
    unsigned char* valid;              // (B, K)
    double cell_height, cell_width;    // pixels
    int batch, rows, columns, height, width, patch, budget, floor_budget;
    int finest, coarsest, native;      // spans: of one token's pixels, of the whole grid, the widest at native resolution
    int scales;                        // 0: one layer only
    int worth_it;
    int stage;                         // see Stage
    int parts, rounds, round;          // of shares: tried at once, at most 32; parts to the power of rounds is ALL; which one this is
};

typedef unsigned Mask[MOST_CELLS * MOST_WORDS];  // a row every MOST_WORDS words: odd, so that banks differ

__device__ __forceinline__ bool is_skipped(const Cover& job, int image) { return job.skipped && job.skipped[image]; }
__device__ __forceinline__ int words_of(const Cover& job) { return (job.columns + 31) / 32; }

// The bits of columns [from, from + span) in a word.
__device__ __forceinline__ unsigned window(int word, int from, int span) {
    const int low = max(from - 32 * word, 0), high = min(from + span - 32 * word, 32);
    return low >= high ? 0u : (high == 32 ? ~0u : (1u << high) - 1) & (~0u << low);
}

// Greedy shelf packing as in ops/cover.py: squares of `span` cells that cover every marked cell. Called by one warp. Clears the
// mask. Returns the number of squares, or most + 1 if there are more than `most`.
__device__ int shelves(unsigned* mask, int rows, int words, int span, int most, unsigned* squares) {
    const int lane = threadIdx.x % 32;
    int found = 0;
    for (int top = 0; top < rows;) {
        bool marked = false;
        if (top + lane < rows)
            for (int word = 0; word < words; ++word) marked |= mask[(top + lane) * MOST_WORDS + word] != 0;
        const unsigned begun = __ballot_sync(~0u, marked);
        if (!begun) {
            top += 32;
            continue;
        }
        top += __ffs(begun) - 1;
        const int end = min(top + span, rows);
        unsigned shelf = 0;  // one word per lane
        if (lane < words)
#pragma unroll 4
            for (int row = top; row < end; ++row) shelf |= mask[row * MOST_WORDS + lane];
        while (true) {
            const unsigned filled = __ballot_sync(~0u, shelf != 0);
            if (!filled) break;
            if (found == most) return most + 1;
            const int word = __ffs(filled) - 1;
            const int column = 32 * word + __ffs(__shfl_sync(~0u, shelf, word)) - 1;
            const int last = min((column + span - 1) / 32, words - 1);
            int first = top;
            while (true) {  // the square slides down to its first marked cell
                bool here = false;
                if (first + lane < end)
                    for (int w = word; w <= last; ++w)
                        here |= (mask[(first + lane) * MOST_WORDS + w] & window(w, column, span)) != 0;
                const unsigned holders = __ballot_sync(~0u, here);
                if (holders) {
                    first += __ffs(holders) - 1;
                    break;
                }
                first += 32;
            }
            if (lane == 0 && squares) squares[found] = first << 16 | column;
            ++found;
            for (int row = first + lane; row < min(first + span, rows); row += 32)
                for (int w = word; w <= last; ++w) mask[row * MOST_WORDS + w] &= ~window(w, column, span);
            shelf &= ~window(lane, column, span);
            __syncwarp();
        }
    }
    return found;
}

// Marks or clears the cells of squares. Called by the whole block.
__device__ void paint(const Cover& job, unsigned* mask, const unsigned* squares, int count, int span, bool mark) {
    const int words = words_of(job), tall = min(span, job.rows);
    for (int i = threadIdx.x; i < count * tall; i += blockDim.x) {
        const unsigned square = squares[i / tall];
        const int row = (square >> 16) + i % tall, column = square & 0xFFFF;
        if (row >= job.rows) continue;
        for (int word = column / 32; word <= min((column + span - 1) / 32, words - 1); ++word) {
            const unsigned bits = window(word, column, span);
            if (mark) atomicOr(&mask[row * MOST_WORDS + word], bits);
            else atomicAnd(&mask[row * MOST_WORDS + word], ~bits);
        }
    }
    __syncthreads();
}

__device__ void fill(const Cover& job, unsigned* mask, bool mark) {
    const int words = words_of(job);
    for (int i = threadIdx.x; i < job.rows * words; i += blockDim.x)
        mask[i / words * MOST_WORDS + i % words] = mark ? window(i % words, 0, job.columns) : 0u;
    __syncthreads();
}

// Loads the ink's bits, or marks all cells if there is no ink. Returns whether there is ink.
__device__ bool load_ink(const Cover& job, int image, unsigned* mask) {
    __shared__ int any;
    const int words = words_of(job);
    if (threadIdx.x == 0) any = 0;
    __syncthreads();
    const unsigned* bits = job.bits + static_cast<long long>(image) * job.rows * words;
    for (int i = threadIdx.x; i < job.rows * words; i += blockDim.x) {
        const unsigned word = bits[i];
        mask[i / words * MOST_WORDS + i % words] = word;
        if (word) any = 1;
    }
    __syncthreads();
    const bool inked = any;
    if (!inked) fill(job, mask, true);
    return inked;
}

__device__ __forceinline__ int spans_of(const Cover& job) { return job.coarsest - job.finest + 1; }
__device__ __forceinline__ long long stage_place(const Cover& job, int stage, int image) {
    return (static_cast<long long>(stage) * job.batch + image) * spans_of(job);
}

// The number of squares per span, in shared memory. Called by the whole block.
__device__ const int* table_of(const Cover& job, int stage, int image) {
    __shared__ int table[MOST_CELLS];
    const int* counts = job.counts + stage_place(job, stage, image);
    __syncthreads();
    for (int i = threadIdx.x; i < spans_of(job); i += blockDim.x) table[i] = counts[i];
    __syncthreads();
    return table;
}

// The least span in (low, high] that needs at most `most` squares; `high` does.
__device__ int bisected(const Cover& job, const int* table, int low, int high, int most) {
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        if (table[middle - job.finest] <= most) high = middle;
        else low = middle;
    }
    return high;
}

__device__ __forceinline__ int finest_of(const Cover& job, const int* table, int most) {
    return bisected(job, table, job.finest - 1, job.coarsest, most);
}

__device__ __forceinline__ double width_of(const Cover& job, int span) {
    return fmax(static_cast<double>(job.patch), span * fmax(job.cell_height, job.cell_width));
}

// The span of a scale of the fine layer, `scale` thirds of an octave below `span`.
__device__ __forceinline__ int rung(const Cover& job, int span, int scale) {
    const int third = scale % 3, factor = third == 0 ? 1048576 : third == 1 ? 832255 : 660561;  // 2^20 / 2^(third / 3)
    return max(job.finest, static_cast<int>(static_cast<long long>(span) * (factor >> scale / 3) >> 20));
}

struct Rung {
    int span, floor;  // span 0: this scale is not needed
};

// The span of a scale, and the floor of the coarse layer. Called by the whole block.
__device__ Rung rung_of(const Cover& job, int image, int scale) {
    const int* table = table_of(job, OF_INK, image);
    const int fit = finest_of(job, table, job.budget), span = rung(job, fit, scale);
    const bool needed = scale == 0 || span != rung(job, fit, scale - 1);
    return {needed ? span : 0, max(finest_of(job, table, job.floor_budget), fit)};
}

__device__ __forceinline__ long long scale_place(const Cover& job, int image, int scale) {
    return static_cast<long long>(image) * job.scales + scale;
}

// The last share of a round that fits, from 0; bit i of `fits` says whether share i does, from 1.
__device__ int last_share(unsigned fits, int parts) {
    int low = 0, high = parts;
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        if (fits >> middle & 1) low = middle;
        else high = middle;
    }
    return low;
}

__device__ __forceinline__ int* answers_of(const Cover& job, long long place, int round) {
    return job.reached + (static_cast<long long>(round) * job.batch * job.scales + place) * job.parts;
}

// The share that a round begins at, by the results of those before it; ALL if all cells fit. Called by a warp.
__device__ int first_share(const Cover& job, long long place, int round) {
    const int lane = threadIdx.x % 32;
    int first = 0, step = ALL;
    for (int i = 0; i < round; ++i) {
        const unsigned fits = __ballot_sync(~0u, lane < job.parts && answers_of(job, place, i)[lane] != 0);
        if (i == 0 && fits >> (job.parts - 1)) return ALL;
        step /= job.parts;
        first += last_share(fits << 1, job.parts) * step;
    }
    return first;
}

// The best choice: one layer (scale −1), or a fine layer of `count` squares over a coarse one no coarser than `floor`.
struct Choice {
    int scale, span, floor, count;
    const unsigned* squares;
};

__device__ Choice choice_of(const Cover& job, int image) {
    __shared__ int slots[MOST_SCALES], worths[MOST_SCALES];
    __shared__ Choice best;
    const int* table = table_of(job, OF_INK, image);
    const int fit = finest_of(job, table, job.budget), floor = max(finest_of(job, table, job.floor_budget), fit);
    for (int scale = threadIdx.x / 32; scale < job.scales; scale += blockDim.x / 32) {
        const int lane = threadIdx.x % 32;
        if (scale > 0 && rung(job, fit, scale) == rung(job, fit, scale - 1)) {  // not needed
            if (lane == 0) worths[scale] = -1;
            continue;
        }
        const long long place = scale_place(job, image, scale);
        const int worth = lane < job.parts ? answers_of(job, place, job.rounds - 1)[lane] : -1;
        const bool all = first_share(job, place, job.rounds - 1) == ALL;
        const unsigned fits = __ballot_sync(~0u, worth >= 0);
        const int slot = all ? 0 : last_share(fits, job.parts);
        const int value = __shfl_sync(~0u, worth, slot);
        if (lane == 0) slots[scale] = slot, worths[scale] = value;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        const long long place = stage_place(job, OF_INK, image) + fit - job.finest;
        best = {-1, fit, fit, table[fit - job.finest], job.squares + place * job.budget};
        int most = job.scales ? job.totals[image * (job.scales + 1) + job.scales] + job.worth_it : 0;
        for (int scale = 0; scale < job.scales; ++scale) {
            if (worths[scale] <= most) continue;
            const long long slot = scale_place(job, image, scale) * job.parts + slots[scale];
            most = worths[scale];
            best = {scale, rung(job, fit, scale), floor, job.laid[slot], job.above + slot * job.budget};
        }
    }
    __syncthreads();
    return best;
}

// The coarse layer below the chosen one, as fine as the remaining tokens allow.
__device__ Choice below(const Cover& job, int image, const Choice& chosen) {
    if (chosen.scale < 0) return {-1, job.finest, 0, 0, nullptr};
    const int* table = table_of(job, OF_REST, image);
    const int span = bisected(job, table, chosen.span - 1, chosen.floor, job.budget - chosen.count);
    const long long listed = stage_place(job, 0, image) + span - job.finest;
    return {-1, span, 0, table[span - job.finest], job.squares + listed * job.budget};
}

// The tokens left for blank cells: none unless everything else is at native resolution.
__device__ __forceinline__ int left_for_blank(const Cover& job, const Choice& fine, const Choice& coarse) {
    const bool native = (!fine.count || fine.span <= job.native) && (!coarse.count || coarse.span <= job.native);
    return native ? job.budget - fine.count - coarse.count : 0;
}

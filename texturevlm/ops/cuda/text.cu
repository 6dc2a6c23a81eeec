// Lines of text by the structure of their strokes (texturevlm/channels/text.py), on three mip levels at once. Windows
// slide in registers: a thread reads a run of texels, joins neighbours, then pairs of pairs, and so on.
//   text_strokes: colour → how much of its contrast changes across each texel
//   text_letters: strokes → without ruled lines; and closed downwards to letters
//   text_lines:   letters → closed to lines, weighed by how many strokes they have; what is too small is dropped
// Beyond the border a window has nothing to choose from: there a maximum reads −∞ and a minimum ∞.
// Each lets the next one start when its own blocks are nearly done: earlier, those would only stand in others' way.
#include "marks.cuh"
#include "scalar.cuh"

constexpr int CONTRAST = 15, RULED = 25, LETTER = 5, GAP = 17, DASH_ROWS = 7, DASH_COLUMNS = 5, MARGIN = 4;
constexpr float FULL = 0.7f, FAINT = 0.02f, SPARSE = 0.06f;
constexpr float INFINITE = 3e38f;

struct Scale {
    const float* image;  // (B, 3, h, w)
    float* strokes;      // (B, h, w)
    float* clean;        // (B, h, w): strokes without ruled lines
    float* letters;      // (B, h, w)
    float* found;        // (B, h, w): may be where the strokes were, unless they are still needed
    int height, width;
};

struct Text {
    Scale scale[3];
    int batch, scales;
    Marks marks;        // only what changed is made
};

struct Tile {
    int y, x, image, level;
    const Scale* scale;

    __device__ long long plane() const { return static_cast<long long>(scale->height) * scale->width; }
    __device__ long long start() const { return image * plane(); }
};

__device__ __forceinline__ Tile tile_of(const Text& text, int rows, int columns) {
    int block = blockIdx.x, index = 0;
    while (true) {
        const Scale& scale = text.scale[index];
        const int across = (scale.width + columns - 1) / columns, down = (scale.height + rows - 1) / rows;
        if (index + 1 == text.scales || block < across * down * text.batch) {
            const int strip = block / across, image = strip / down;
            return {(strip - image * down) * rows, (block - strip * across) * columns, image, index, &scale};
        }
        block -= across * down * text.batch;
        ++index;
    }
}

__device__ __forceinline__ int inside(int at, int extent) { return min(max(at, 0), extent - 1); }
__device__ __forceinline__ bool exists(int at, int extent) { return at >= 0 && at < extent; }

struct Highest {
    __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};
struct Lowest {
    __device__ float operator()(float a, float b) const { return fminf(a, b); }
};

// From the joins of STEP values to those of POWER values. Not a loop: an index that is no constant is not in a register.
template <int STEP, int POWER, int LENGTH, class Join>
__device__ __forceinline__ void grow(float* run, Join join) {
    if constexpr (STEP < POWER) {
#pragma unroll
        for (int i = 0; i + 2 * STEP <= LENGTH; ++i) run[i] = join(run[i], run[i + STEP]);
        grow<2 * STEP, POWER, LENGTH>(run, join);
    }
}

// run[i] = the join of run[i … i + WINDOW), for the first COUNT of COUNT + WINDOW − 1 values.
template <int WINDOW, int COUNT, class Join>
__device__ __forceinline__ void slide(float* run, Join join) {
    constexpr int POWER = WINDOW >= 16 ? 16 : WINDOW >= 8 ? 8 : 4;
    grow<1, POWER, COUNT + WINDOW - 1>(run, join);
#pragma unroll
    for (int i = 0; i < COUNT; ++i) run[i] = join(run[i], run[i + WINDOW - POWER]);
}

template <int COUNT>
__device__ __forceinline__ void load(float* run, const float* from, int step) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) run[i] = from[i * step];
}

template <int COUNT>
__device__ __forceinline__ void store(const float* run, float* to, int step) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) to[i * step] = run[i];
}

// COUNT values by the block, AT_ONCE of each thread under way at a time. What is read was just written by the kernel
// before, so not by __ldg (mip.cu); then only reads that come before all writes need not wait for one another.
template <int COUNT, int AT_ONCE, class Read, class Write>
__device__ __forceinline__ void fetch(Read read, Write write) {
#pragma unroll 1
    for (int start = threadIdx.x; start < COUNT; start += 256 * AT_ONCE) {
        float values[AT_ONCE];
#pragma unroll
        for (int k = 0; k < AT_ONCE; ++k) values[k] = read(min(start + 256 * k, COUNT - 1));
#pragma unroll
        for (int k = 0; k < AT_ONCE; ++k)
            if (start + 256 * k < COUNT) write(start + 256 * k, values[k]);
    }
}

// How far a texel acts: on strokes, then by those on letters (downwards, which is further), then by those on lines.
constexpr int STROKES_REACH = CONTRAST / 2, LETTERS_REACH = STROKES_REACH + 2 * (RULED / 2) + 2 * (LETTER / 2);
constexpr int LINES_REACH = LETTERS_REACH + DASH_ROWS / 2 + (DASH_ROWS + MARGIN) / 2;
static_assert(LINES_REACH >= STROKES_REACH + 2 + DASH_COLUMNS / 2 + (DASH_COLUMNS + MARGIN) / 2 + 2 * (GAP / 2), "along lines");

__device__ __forceinline__ bool unchanged(const Text& text, const Tile& tile, int rows, int columns, int reach) {
    return !text.marks.near_on_level(tile.level, tile.y, tile.x, tile.y + rows, tile.x + columns, reach);
}

constexpr int RUN = 8;  // windows that a thread makes at once

namespace strokes {
constexpr int TILE = 32, REACH = CONTRAST / 2, SEEN = TILE + 2 * REACH, ROWS = 4;
constexpr int PITCH = SEEN + 1, PART_PITCH = TILE + 1;  // odd, so that 32 rows lie in 32 banks
}

extern "C" __global__ void __launch_bounds__(256) text_strokes(const __grid_constant__ Text text) {
    using namespace strokes;
    __shared__ float grey[SEEN * PITCH], high[SEEN * PART_PITCH], low[SEEN * PART_PITCH];
    wait_for_previous();
    const Tile tile = tile_of(text, TILE, TILE);
    if (unchanged(text, tile, TILE, TILE, STROKES_REACH)) return;
    const int height = tile.scale->height, width = tile.scale->width;
    const long long plane = tile.plane();
    const float* image = tile.scale->image + 3 * tile.start();
    const auto read = [&](int i) {
        const int y = inside(tile.y - REACH + i / SEEN, height), x = inside(tile.x - REACH + i % SEEN, width);
        const float* at = image + y * width + x;
        return *at * 0.299f + at[plane] * 0.587f + at[2 * plane] * 0.114f;
    };
    fetch<SEEN * SEEN, 3>(read, [&](int i, float value) { grey[i / SEEN * PITCH + i % SEEN] = value; });
    __syncthreads();
    for (int i = threadIdx.x; i < SEEN * (TILE / RUN); i += 256) {
        const int row = i % SEEN, start = i / SEEN * RUN;
        float most[RUN + CONTRAST - 1], least[RUN + CONTRAST - 1];
        load<RUN + CONTRAST - 1>(most, grey + row * PITCH + start, 1);
        load<RUN + CONTRAST - 1>(least, grey + row * PITCH + start, 1);
        slide<CONTRAST, RUN>(most, Highest());
        slide<CONTRAST, RUN>(least, Lowest());
        store<RUN>(most, high + row * PART_PITCH + start, 1);
        store<RUN>(least, low + row * PART_PITCH + start, 1);
    }
    __syncthreads();
    let_next_start();
    const int column = threadIdx.x & 31, first = (threadIdx.x >> 5) * ROWS, x = tile.x + column;
    float most[ROWS + CONTRAST - 1], least[ROWS + CONTRAST - 1];
    load<ROWS + CONTRAST - 1>(most, high + first * PART_PITCH + column, PART_PITCH);
    load<ROWS + CONTRAST - 1>(least, low + first * PART_PITCH + column, PART_PITCH);
    slide<CONTRAST, ROWS>(most, Highest());
    slide<CONTRAST, ROWS>(least, Lowest());
    float* to = tile.scale->strokes + tile.start();
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
        const int y = tile.y + first + i;
        if (x >= width || y >= height) break;
        const float* centre = grey + (first + i + REACH) * PITCH + column + REACH;
        const float left = (centre[-PITCH - 1] + centre[-1] + centre[PITCH - 1]) * (1.f / 3.f);
        const float right = (centre[-PITCH + 1] + centre[1] + centre[PITCH + 1]) * (1.f / 3.f);
        to[y * width + x] = fminf(fabsf(right - left) / (FULL * (most[i] - least[i]) + FAINT), 1.f);
    }
}

namespace letters {
constexpr int TALL = 64, WIDE = 32, PITCH = WIDE + 2;
constexpr int CLOSED = LETTER / 2, LINE = RULED / 2;
constexpr int CLEAN = TALL + 4 * CLOSED, LONG = CLEAN + 2 * LINE, SEEN = LONG + 2 * LINE;  // rows
constexpr int OWN = CLEAN * WIDE / 256;
static_assert(OWN * 256 == CLEAN * WIDE, "each thread has as many");
}

extern "C" __global__ void __launch_bounds__(256) text_letters(const __grid_constant__ Text text) {
    using namespace letters;
    __shared__ float one[SEEN * PITCH], other[LONG * PITCH];
    wait_for_previous();
    const Tile tile = tile_of(text, TALL, WIDE);
    if (unchanged(text, tile, TALL, WIDE, LETTERS_REACH)) return;
    const int height = tile.scale->height, width = tile.scale->width;
    const float* strokes = tile.scale->strokes + tile.start();
    float own[OWN];  // strokes that are needed last, but asked for first
#pragma unroll
    for (int k = 0; k < OWN; ++k) {
        const int i = threadIdx.x + 256 * k, y = inside(tile.y - 2 * CLOSED + i / WIDE, height);
        own[k] = strokes[y * width + min(tile.x + i % WIDE, width - 1)];
    }
    // Ruled lines: strokes up to three wide that go on for RULED rows or more.
    const auto widest = [&](int i) {
        const int y = tile.y - 2 * CLOSED - 2 * LINE + i / PITCH, x = inside(tile.x - 1 + i % PITCH, width);
        const float* at = strokes + inside(y, height) * width + x;
        const float most = fmaxf(fmaxf(at[x > 0 ? -1 : 0], at[0]), at[x + 1 < width ? 1 : 0]);
        return exists(y, height) ? most : INFINITE;
    };
    fetch<SEEN * PITCH, 4>(widest, [&](int i, float value) { one[i] = value; });
    __syncthreads();
    for (int i = threadIdx.x; i < LONG / RUN * PITCH; i += 256) {
        const int start = i / PITCH * RUN, column = i - start / RUN * PITCH;
        float run[RUN + RULED - 1];
        load<RUN + RULED - 1>(run, one + start * PITCH + column, PITCH);
        slide<RULED, RUN>(run, Lowest());
#pragma unroll
        for (int k = 0; k < RUN; ++k) {
            const bool known = exists(tile.y - 2 * CLOSED - LINE + start + k, height);
            other[(start + k) * PITCH + column] = known ? run[k] : -INFINITE;
        }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < CLEAN / RUN * PITCH; i += 256) {
        const int start = i / PITCH * RUN, column = i - start / RUN * PITCH;
        float run[RUN + RULED - 1];
        load<RUN + RULED - 1>(run, other + start * PITCH + column, PITCH);
        slide<RULED, RUN>(run, Highest());
        store<RUN>(run, one + start * PITCH + column, PITCH);
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < OWN; ++k) {
        const int i = threadIdx.x + 256 * k, row = i / WIDE, column = i % WIDE;
        const int y = tile.y - 2 * CLOSED + row, x = tile.x + column;
        const float* line = one + row * PITCH + column + 1;
        float clean = 0.f;
        if (exists(y, height) && x < width) {
            const float ruled = fmaxf(fmaxf(line[x > 0 ? -1 : 0], line[0]), line[x + 1 < width ? 1 : 0]);
            clean = fmaxf(own[k] - ruled, 0.f);
            if (row >= 2 * CLOSED && row < TALL + 2 * CLOSED) tile.scale->clean[tile.start() + y * width + x] = clean;
        }
        other[row * PITCH + column] = clean;
    }
    __syncthreads();
    let_next_start();
    const int column = threadIdx.x % WIDE, start = threadIdx.x / WIDE * RUN, x = tile.x + column;
    float run[RUN + 4 * CLOSED];
    load<RUN + 4 * CLOSED>(run, other + start * PITCH + column, PITCH);
    slide<LETTER, RUN + 2 * CLOSED>(run, Highest());
#pragma unroll
    for (int k = 0; k < RUN + 2 * CLOSED; ++k)
        if (!exists(tile.y - CLOSED + start + k, height)) run[k] = INFINITE;
    slide<LETTER, RUN>(run, Lowest());
#pragma unroll
    for (int k = 0; k < RUN; ++k)
        if (x < width && tile.y + start + k < height)
            tile.scale->letters[tile.start() + (tile.y + start + k) * width + x] = run[k];
}

namespace lines {
constexpr int TALL = 32, WIDE = 64, AROUND = 8;  // AROUND: what the smallest text and its margin need on every side
constexpr int ROWS = TALL + 2 * AROUND, DENSE = WIDE + 2 * AROUND, HALF = GAP / 2;
constexpr int LETTERS = DENSE + 4 * HALF, STROKES = DENSE + 2 * HALF;  // columns
constexpr int LETTER_PITCH = LETTERS + 1, STROKE_PITCH = STROKES + 1, PITCH = DENSE + 1;
constexpr int ROUNDS = (ROWS * (DENSE / RUN) + 255) / 256;
constexpr int HIGH = DASH_ROWS + MARGIN, LONG = DASH_COLUMNS + MARGIN, KEPT = TALL + HIGH - 1;  // KEPT: rows
static_assert(DASH_ROWS / 2 + HIGH / 2 == AROUND && DASH_COLUMNS / 2 + LONG / 2 <= AROUND && KEPT % DASH_ROWS == 0, "");
}

// Letters closed along their line, times how many strokes above the few that anything has: RUN texels of a row.
__device__ __forceinline__ void dense_run(const float* letters, const float* strokes, int x, int width, float* dense) {
    using namespace lines;
    float run[RUN + 4 * HALF];
    load<RUN + 4 * HALF>(run, letters, 1);
    slide<GAP, RUN + 2 * HALF>(run, Highest());
#pragma unroll
    for (int k = 0; k < RUN + 2 * HALF; ++k)
        if (!exists(x - HALF + k, width)) run[k] = INFINITE;
    slide<GAP, RUN>(run, Lowest());
    float total = 0.f;
#pragma unroll
    for (int k = 0; k < GAP; ++k) total += strokes[k];
#pragma unroll
    for (int k = 0; k < RUN; ++k) {
        dense[k] = run[k] * fmaxf(total * (1.f / GAP) - SPARSE, 0.f);
        if (k + 1 < RUN) total += strokes[GAP + k] - strokes[k];
    }
}

extern "C" __global__ void __launch_bounds__(256) text_lines(const __grid_constant__ Text text) {
    using namespace lines;
    __shared__ float one[ROWS * LETTER_PITCH], other[ROWS * STROKE_PITCH];
    wait_for_previous();
    const Tile tile = tile_of(text, TALL, WIDE);
    if (unchanged(text, tile, TALL, WIDE, LINES_REACH)) return;
    const int height = tile.scale->height, width = tile.scale->width;
    const float *letters = tile.scale->letters + tile.start(), *strokes = tile.scale->clean + tile.start();
    const auto at = [&](int row, int column) {
        return inside(tile.y - AROUND + row, height) * width + inside(tile.x - AROUND + column, width);
    };
    fetch<ROWS * LETTERS, 7>([&](int i) { return letters[at(i / LETTERS, i % LETTERS - 2 * HALF)]; },
                             [&](int i, float value) { one[i / LETTERS * LETTER_PITCH + i % LETTERS] = value; });
    fetch<ROWS * STROKES, 6>([&](int i) { return strokes[at(i / STROKES, i % STROKES - HALF)]; },
                             [&](int i, float value) { other[i / STROKES * STROKE_PITCH + i % STROKES] = value; });
    __syncthreads();
    float dense[ROUNDS][RUN];
#pragma unroll
    for (int round = 0; round < ROUNDS; ++round) {
        const int i = threadIdx.x + round * 256, row = i % ROWS, start = i / ROWS * RUN;
        if (start >= DENSE) break;
        const float *in_row = one + row * LETTER_PITCH + start, *its_strokes = other + row * STROKE_PITCH + start;
        dense_run(in_row, its_strokes, tile.x - AROUND + start, width, dense[round]);
    }
    __syncthreads();  // where the letters were, now comes what they are closed to
#pragma unroll
    for (int round = 0; round < ROUNDS; ++round) {
        const int i = threadIdx.x + round * 256, row = i % ROWS, start = i / ROWS * RUN;
        if (start >= DENSE) break;
#pragma unroll
        for (int k = 0; k < RUN; ++k) {
            const bool known = exists(tile.y - AROUND + row, height) && exists(tile.x - AROUND + start + k, width);
            one[row * PITCH + start + k] = known ? dense[round][k] : INFINITE;
        }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < KEPT / DASH_ROWS * DENSE; i += 256) {
        const int start = i / DENSE * DASH_ROWS, column = i % DENSE;
        float run[2 * DASH_ROWS - 1];
        load<2 * DASH_ROWS - 1>(run, one + start * PITCH + column, PITCH);
        slide<DASH_ROWS, DASH_ROWS>(run, Lowest());
        store<DASH_ROWS>(run, other + start * PITCH + column, PITCH);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < KEPT * (WIDE / RUN); i += 256) {
        const int row = i % KEPT, start = i / KEPT * RUN, x = tile.x + start - LONG / 2;
        constexpr int LOADED = RUN + LONG - 1 + DASH_COLUMNS - 1, BEFORE = LONG / 2 + DASH_COLUMNS / 2;
        float run[LOADED];
        load<LOADED>(run, other + row * PITCH + start + AROUND - BEFORE, 1);
        slide<DASH_COLUMNS, RUN + LONG - 1>(run, Lowest());
#pragma unroll
        for (int k = 0; k < RUN + LONG - 1; ++k)
            if (!exists(x + k, width) || !exists(tile.y - HIGH / 2 + row, height)) run[k] = -INFINITE;
        slide<LONG, RUN>(run, Highest());
        store<RUN>(run, one + row * PITCH + start, 1);
    }
    __syncthreads();
    let_next_start();
    const int column = threadIdx.x % WIDE, start = threadIdx.x / WIDE * RUN, x = tile.x + column;
    float run[RUN + HIGH - 1];
    load<RUN + HIGH - 1>(run, one + start * PITCH + column, PITCH);
    slide<HIGH, RUN>(run, Highest());
#pragma unroll
    for (int k = 0; k < RUN; ++k)
        if (x < width && tile.y + start + k < height)
            tile.scale->found[tile.start() + (tile.y + start + k) * width + x] = run[k];
}

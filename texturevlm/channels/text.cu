// Lines of text by the structure of their strokes (texturevlm/channels/text.py), on three mip levels at once.
//   text_strokes: colour → how much of the local contrast changes across each texel
//   text_letters: strokes → strokes without ruled lines; closed vertically to letters
//   text_lines:   letters → closed horizontally to lines, weighted by their strokes; without what is too small
// Beyond the border a maximum reads −∞ and a minimum ∞.
// Each kernel calls let_next_start near its end: earlier, blocks of the next kernel would only take up room.
#include "scalar.cuh"
#include "slide.cuh"
#include "text.cuh"

constexpr float FULL = 0.7f, FAINT = 0.02f, SPARSE = 0.06f;
constexpr float INFINITE = 3e38f;

struct Tile {
    int y, x, image;
    const Scale* scale;

    __device__ long long plane() const { return static_cast<long long>(scale->height) * scale->width; }
    __device__ long long start() const { return image * plane(); }
};

// Tile `number` of all images on all scales.
__device__ __forceinline__ Tile tile_of(const Text& text, int number, int rows, int columns) {
    int level = 0;
    while (true) {
        const Scale& scale = text.scale[level];
        const int across = (scale.width + columns - 1) / columns, down = (scale.height + rows - 1) / rows;
        if (level + 1 == text.scales || number < across * down * text.batch) {
            const int strip = number / across, image = strip / down;
            return {(strip - image * down) * rows, (number - strip * across) * columns, image, &scale};
        }
        number -= across * down * text.batch;
        ++level;
    }
}

__device__ __forceinline__ int inside(int at, int extent) { return min(max(at, 0), extent - 1); }
__device__ __forceinline__ bool exists(int at, int extent) { return at >= 0 && at < extent; }

// Texels x … x + 3 of a row, x a multiple of four; texels beyond the border repeat it. The previous kernel may have just written
// them, so they are not read through __ldg (see mip.cu).
struct Row {
    const float* start;
    int width;
    bool aligned;  // every multiple of four lies on 16 bytes

    __device__ Row(const float* map, int y, int width)
        : start(map + y * width), width(width), aligned(width % 4 == 0 && reinterpret_cast<unsigned long long>(map) % 16 == 0) {}

    __device__ float at(int x) const { return start[inside(x, width)]; }

    __device__ float4 four(int x) const {
        if (!aligned) return {at(x), at(x + 1), at(x + 2), at(x + 3)};
        const int near = inside(x, width - 3);
        const float4 four = *reinterpret_cast<const float4*>(start + near);
        if (x == near) return four;
        const float border = x < near ? four.x : four.w;
        return {border, border, border, border};
    }
};

// The block moves ROWS × FOURS · 4 values. A thread reads all of its values before it writes the first, so that the reads
// overlap. read(row, four) returns four values, write(row, column, value) takes one.
template <int ROWS, int FOURS, class Read, class Write>
__device__ __forceinline__ void fetch(Read read, Write write) {
    constexpr int COUNT = ROWS * FOURS, EACH = (COUNT + 255) / 256;
    float4 values[EACH];
#pragma unroll
    for (int k = 0; k < EACH; ++k) {
        const int i = min(static_cast<int>(threadIdx.x) + 256 * k, COUNT - 1);
        values[k] = read(i / FOURS, i % FOURS);
    }
#pragma unroll
    for (int k = 0; k < EACH; ++k) {
        const int i = threadIdx.x + 256 * k, row = i / FOURS, column = i % FOURS * 4;
        if (i >= COUNT) break;
        write(row, column, values[k].x), write(row, column + 1, values[k].y);
        write(row, column + 2, values[k].z), write(row, column + 3, values[k].w);
    }
}

constexpr int RUN = 8;  // windows per thread

namespace strokes {
constexpr int TILE = STROKES_TILE, REACH = CONTRAST / 2, SEEN = TILE + 2 * REACH, ROWS = 4;
constexpr int LEAD = 8, FOURS = (TILE + 2 * LEAD) / 4;       // columns before the tile, of which REACH are used
constexpr int PITCH = 4 * FOURS + 1, PART_PITCH = TILE + 1;  // odd, so that 32 rows lie in 32 banks
}

extern "C" __global__ void __launch_bounds__(256) text_strokes(const __grid_constant__ Text text) {
    using namespace strokes;
    __shared__ float grey[SEEN * PITCH], high[SEEN * PART_PITCH], low[SEEN * PART_PITCH];
    wait_for_previous();
    const int number = text.strokes.own();
    if (number < 0) return;
    const Tile tile = tile_of(text, number, TILE, TILE);
    const int height = tile.scale->height, width = tile.scale->width;
    const long long plane = tile.plane();
    const float* image = tile.scale->image + 3 * tile.start();
    const auto read = [&](int row, int four) {
        const int y = inside(tile.y - REACH + row, height), x = tile.x - LEAD + 4 * four;
        const float4 red = Row(image, y, width).four(x), green = Row(image + plane, y, width).four(x);
        const float4 blue = Row(image + 2 * plane, y, width).four(x);
        const auto luma = [](float r, float g, float b) { return r * 0.299f + g * 0.587f + b * 0.114f; };
        return float4{luma(red.x, green.x, blue.x), luma(red.y, green.y, blue.y), luma(red.z, green.z, blue.z),
                      luma(red.w, green.w, blue.w)};
    };
    fetch<SEEN, FOURS>(read, [&](int row, int column, float value) { grey[row * PITCH + column] = value; });
    __syncthreads();
    for (int i = threadIdx.x; i < SEEN * (TILE / RUN); i += 256) {
        const int row = i % SEEN, start = i / SEEN * RUN;
        float most[RUN + CONTRAST - 1], least[RUN + CONTRAST - 1];
        load<RUN + CONTRAST - 1>(most, grey + row * PITCH + LEAD - REACH + start, 1);
        load<RUN + CONTRAST - 1>(least, grey + row * PITCH + LEAD - REACH + start, 1);
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
        const float* centre = grey + (first + i + REACH) * PITCH + column + LEAD;
        const float left = (centre[-PITCH - 1] + centre[-1] + centre[PITCH - 1]) * (1.f / 3.f);
        const float right = (centre[-PITCH + 1] + centre[1] + centre[PITCH + 1]) * (1.f / 3.f);
        to[y * width + x] = fminf(fabsf(right - left) / (FULL * (most[i] - least[i]) + FAINT), 1.f);
    }
}

namespace letters {
constexpr int TALL = LETTERS_TALL, WIDE = LETTERS_WIDE, PITCH = WIDE + 2;
constexpr int LEAD = 4, FOURS = (WIDE + 2 * LEAD) / 4;  // columns before the tile, of which one is used
constexpr int CLOSED = LETTER / 2, LINE = RULED / 2;
constexpr int CLEAN = TALL + 4 * CLOSED, LONG = CLEAN + 2 * LINE, SEEN = LONG + 2 * LINE;  // rows
constexpr int OWN = CLEAN * WIDE / 256;
static_assert(OWN * 256 == CLEAN * WIDE, "each thread has as many");
}

extern "C" __global__ void __launch_bounds__(256) text_letters(const __grid_constant__ Text text) {
    using namespace letters;
    __shared__ float one[SEEN * PITCH], other[LONG * PITCH];
    wait_for_previous();
    const int number = text.letters.own();
    if (number < 0) return;
    const Tile tile = tile_of(text, number, TALL, WIDE);
    const int height = tile.scale->height, width = tile.scale->width;
    const float* strokes = tile.scale->strokes + tile.start();
    float own[OWN];  // loaded first, used last
#pragma unroll
    for (int k = 0; k < OWN; ++k) {
        const int i = threadIdx.x + 256 * k, y = inside(tile.y - 2 * CLOSED + i / WIDE, height);
        own[k] = strokes[y * width + min(tile.x + i % WIDE, width - 1)];
    }
    // Ruled lines: strokes up to three texels wide and at least RULED rows long.
    const auto widest = [&](int row, int four) {
        const int y = tile.y - 2 * CLOSED - 2 * LINE + row, x = tile.x - LEAD + 4 * four;
        const Row line(strokes, inside(y, height), width);
        const float4 here = line.four(x);
        const float before = line.at(x - 1), after = line.at(x + 4);
        const float left = fmaxf(here.x, here.y), right = fmaxf(here.z, here.w);
        if (!exists(y, height)) return float4{INFINITE, INFINITE, INFINITE, INFINITE};
        return float4{fmaxf(before, left), fmaxf(left, here.z), fmaxf(here.y, right), fmaxf(right, after)};
    };
    fetch<SEEN, FOURS>(widest, [&](int row, int column, float value) {
        if (column >= LEAD - 1 && column <= LEAD + WIDE) one[row * PITCH + column - LEAD + 1] = value;
    });
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
constexpr int TALL = LINES_TALL, WIDE = LINES_WIDE, AROUND = 8;  // AROUND: what the smallest text and its margin need on every side
constexpr int ROWS = TALL + 2 * AROUND, DENSE = WIDE + 2 * AROUND, HALF = GAP / 2;
constexpr int LETTERS = DENSE + 4 * HALF, STROKES = DENSE + 2 * HALF;  // columns
constexpr int LETTER_PITCH = LETTERS + 1, STROKE_PITCH = STROKES + 1, PITCH = DENSE + 1;
constexpr int ROUNDS = (ROWS * (DENSE / RUN) + 255) / 256;
constexpr int HIGH = DASH_ROWS + MARGIN, LONG = DASH_COLUMNS + MARGIN, KEPT = TALL + HIGH - 1;  // KEPT: rows
static_assert(LETTERS % 4 == 0 && STROKES % 4 == 0 && HALF % 4 == 0 && AROUND % 4 == 0, "four at a time");
static_assert(DASH_ROWS / 2 + HIGH / 2 == AROUND && DASH_COLUMNS / 2 + LONG / 2 <= AROUND && KEPT % DASH_ROWS == 0, "");
}

// Letters closed along the line, times the density of strokes above SPARSE: RUN texels of a row.
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
    const int number = text.lines.own();
    if (number < 0) return;
    const Tile tile = tile_of(text, number, TALL, WIDE);
    const int height = tile.scale->height, width = tile.scale->width;
    const float *letters = tile.scale->letters + tile.start(), *strokes = tile.scale->clean + tile.start();
    const auto read = [&](const float* map, int row, int column) {
        return Row(map, inside(tile.y - AROUND + row, height), width).four(tile.x - AROUND + column);
    };
    fetch<ROWS, LETTERS / 4>([&](int row, int four) { return read(letters, row, 4 * four - 2 * HALF); },
                             [&](int row, int column, float value) { one[row * LETTER_PITCH + column] = value; });
    fetch<ROWS, STROKES / 4>([&](int row, int four) { return read(strokes, row, 4 * four - HALF); },
                             [&](int row, int column, float value) { other[row * STROKE_PITCH + column] = value; });
    __syncthreads();
    float dense[ROUNDS][RUN];
#pragma unroll
    for (int round = 0; round < ROUNDS; ++round) {
        const int i = threadIdx.x + round * 256, row = i % ROWS, start = i / ROWS * RUN;
        if (start >= DENSE) break;
        const float *in_row = one + row * LETTER_PITCH + start, *its_strokes = other + row * STROKE_PITCH + start;
        dense_run(in_row, its_strokes, tile.x - AROUND + start, width, dense[round]);
    }
    __syncthreads();  // the closed letters overwrite the letters
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

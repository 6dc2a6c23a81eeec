// The exact distance field in two launches. A squared Euclidean distance is a sum over the axes, so
//   distance_rows:    the distance to the nearest set pixel of the same row, from bits, one row per warp;
//   distance_columns: the least of (y − j)² + across[j]² over the rows j of a column, one column per lane.
// The second is a search, kept short by two facts. A row further away than the best found so far cannot be nearer. And
// the row that is best for y never moves up as y moves down: (y − j)² − (y − i)² falls with y where i < j. So the best
// rows of two pixels bound those of all pixels between them, and a tile searches every 64th row first, then every 8th,
// then the rest. It is exact whichever of several equally near rows is found.
#include "marks.cuh"

constexpr int FAR = 46340;       // no set pixel in the row: its square exceeds any squared distance, and adding one to
                                 // it still fits into 32 bits, both for extents up to 32767
constexpr int BEYOND = 1 << 20;  // a position that is further than FAR from any pixel
constexpr int CHUNK = 1024;      // pixels of a row that a warp holds as bits, 32 per lane
constexpr int TILE = 64, STEP = 8;

struct Field {
    const unsigned char* mask;  // (B, H, W), not zero where set
    unsigned short* across;     // (B, H, W): the distance inside the row, FAR if it has no set pixel
    float* distance;            // (B, H, W)
    int lines, height, width;   // lines: the rows of all images
    float diagonal;
};

// Bit i of lane l says whether pixel start + 32 l + i is set.
__device__ __forceinline__ unsigned load_bits(const unsigned char* line, int width, int start) {
    const int lane = threadIdx.x & 31;
    unsigned bits = 0;
#pragma unroll
    for (int half = 0; half < 32; half += 16) {
        bool set[16];
#pragma unroll
        for (int i = 0; i < 16; ++i) {
            const int x = start + (half + i) * 32 + lane;
            set[i] = x < width && __ldg(line + x) != 0;
        }
#pragma unroll
        for (int i = 0; i < 16; ++i) {
            const unsigned word = __ballot_sync(~0u, set[i]);
            if (lane == half + i) bits = word;
        }
    }
    return bits;
}

__device__ __forceinline__ int first_of(unsigned bits) { return __ffs(bits) - 1; }
__device__ __forceinline__ int last_of(unsigned bits) { return 31 - __clz(bits); }

// The first set pixel from `start` on.
__device__ int look_ahead(const unsigned char* line, int width, int start) {
    for (; start < width; start += CHUNK) {
        const unsigned bits = load_bits(line, width, start), lanes = __ballot_sync(~0u, bits != 0);
        if (lanes) return start + first_of(lanes) * 32 + first_of(__shfl_sync(~0u, bits, first_of(lanes)));
    }
    return BEYOND;
}

extern "C" __global__ void __launch_bounds__(256) distance_rows(const __grid_constant__ Field field) {
    const int lane = threadIdx.x & 31, index = blockIdx.x * 8 + (threadIdx.x >> 5), width = field.width;
    if (index >= field.lines) return;
    const unsigned char* line = field.mask + static_cast<long long>(index) * width;
    unsigned short* across = field.across + static_cast<long long>(index) * width;
    int last = -BEYOND;  // the last set pixel before this chunk
    int next = -1;       // the first set pixel after this chunk
    for (int start = 0; start < width; start += CHUNK) {
        const unsigned bits = load_bits(line, width, start);
        if (next < start + CHUNK) next = look_ahead(line, width, start + CHUNK);
        const int mine = start + 32 * lane;
        int left = bits ? mine + last_of(bits) : -BEYOND, right = bits ? mine + first_of(bits) : BEYOND;
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            const int before = __shfl_up_sync(~0u, left, step), after = __shfl_down_sync(~0u, right, step);
            if (lane >= step) left = max(left, before);
            if (lane + step < 32) right = min(right, after);
        }
        const int latest = max(last, __shfl_sync(~0u, left, 31));
        left = __shfl_up_sync(~0u, left, 1), right = __shfl_down_sync(~0u, right, 1);
        left = lane == 0 ? last : max(last, left);
        right = lane == 31 ? next : min(next, right);
#pragma unroll 8
        for (int word = 0; word < 32; ++word) {
            const int origin = start + 32 * word, x = origin + lane;
            const unsigned here = __shfl_sync(~0u, bits, word);
            const int before = __shfl_sync(~0u, left, word), after = __shfl_sync(~0u, right, word);
            const unsigned lower = here & (~0u >> (31 - lane)), upper = here & (~0u << lane);
            const int to_left = x - (lower ? origin + last_of(lower) : before);
            const int to_right = (upper ? origin + first_of(upper) : after) - x;
            if (x < width) across[x] = min(min(to_left, to_right), FAR);
        }
        last = latest;
    }
}

struct Nearest {
    unsigned square;
    int row;
};

// Rows low..high of a column, from the one nearest to y outwards: those that are `first`, `first + stride`, … away from
// it. It stops where a row is further away than the best is.
__device__ __forceinline__ Nearest search(const unsigned short* column, int width, int y, int low, int high, int first,
                                          int stride, Nearest best) {
    const int centre = min(max(y, low), high), gap = abs(y - centre), reach = max(centre - low, high - centre);
    for (int k = first; k <= reach && static_cast<unsigned>((gap + k) * (gap + k)) < best.square; k += 4 * stride) {
        int above[4], below[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int up = centre - k - i * stride, down = centre + k + i * stride;
            above[i] = up >= low ? __ldg(column + up * width) : FAR;
            below[i] = down <= high ? __ldg(column + down * width) : FAR;
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int away = k + i * stride, across = min(above[i], below[i]);
            const unsigned square = static_cast<unsigned>((gap + away) * (gap + away)) + static_cast<unsigned>(across * across);
            if (square < best.square) best = {square, above[i] <= below[i] ? centre - away : centre + away};
        }
    }
    return best;
}

extern "C" __global__ void __launch_bounds__(256) distance_columns(const __grid_constant__ Field field) {
    __shared__ Nearest part[8][32];
    __shared__ int best_row[TILE / STEP + 1][32];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, height = field.height, width = field.width;
    const int tiles_across = (width + 31) / 32, tiles_down = (height + TILE - 1) / TILE;
    const int strip = blockIdx.x / tiles_across, image = strip / tiles_down;
    const int x = (blockIdx.x - strip * tiles_across) * 32 + lane, top = (strip - image * tiles_down) * TILE;
    const long long plane = static_cast<long long>(image) * height * width;
    const unsigned short* column = field.across + plane + min(x, width - 1);  // a lane outside repeats the last column
    float* distance = field.distance + plane + x;
    const auto write = [&](int y, unsigned square) {
        if (x >= width || y >= height) return;
        distance[y * width] = square < static_cast<unsigned>(FAR) * FAR ? sqrtf(static_cast<float>(square)) : field.diagonal;
    };

    // The tile's first row and the next tile's: four warps each, which share the distances from it.
    const int end = min(top + (warp / 4) * TILE, height - 1), across = __ldg(column + end * width);
    part[warp][lane] =
        search(column, width, end, 0, height - 1, 1 + warp % 4, 4, {static_cast<unsigned>(across * across), end});
    __syncthreads();
    if (warp < 2) {
        Nearest best = part[4 * warp][lane];
        for (int i = 1; i < 4; ++i) {
            const Nearest other = part[4 * warp + i][lane];
            if (other.square < best.square) best = other;
        }
        best_row[warp * (TILE / STEP)][lane] = best.row;
        if (warp == 0) write(top, best.square);
    }
    __syncthreads();
    if (warp > 0) {
        const int y = top + warp * STEP;
        const Nearest best = search(column, width, min(y, height - 1), best_row[0][lane], best_row[TILE / STEP][lane], 0, 1,
                                    {~0u, 0});
        best_row[warp][lane] = best.row;
        write(y, best.square);
    }
    __syncthreads();
    for (int item = warp; item < TILE / STEP * (STEP - 1); item += 8) {
        const int group = item / (STEP - 1), y = top + group * STEP + 1 + item % (STEP - 1);
        if (y >= height) break;
        write(y, search(column, width, y, best_row[group][lane], best_row[group + 1][lane], 0, 1, {~0u, 0}).square);
    }
}

// The same up to LIMIT pixels, in one launch: nothing further away than that need be looked at, so a tile of 32 × TILE
// reads the bits around it and searches in shared memory. `ahead` holds the least of eight rows, to skip them at once.
constexpr int LIMIT = 64, SEEN = TILE + 2 * LIMIT, AHEAD = 8, WORDS = 1 + 2 * LIMIT / 32;
constexpr int NOTHING = 65535;  // the square of a distance beyond WORDS words

struct Within {
    const unsigned* bits;  // (B, H, ⌈W / 32⌉): a bit for each set pixel
    float* distance;       // (H, W) of the first image
    long long stride;      // from one image to the next
    int height, width;
    float beyond;          // the value if no set pixel is near
    int reach;             // the distance from a marked tile within which bits may have changed
    Marks marks;           // only what changed is updated
};

// The distance from bit `lane` of the middle word to the nearest set bit of a row.
__device__ __forceinline__ int nearest_bit(const unsigned* words, int lane) {
    int left = NOTHING, right = NOTHING;
#pragma unroll
    for (int i = WORDS / 2; i >= 0; --i) {  // the nearest word last, so that it overwrites the others
        const unsigned before = words[WORDS / 2 - i] & (i ? ~0u : ~0u >> (31 - lane));
        const unsigned after = words[WORDS / 2 + i] & (i ? ~0u : ~0u << lane);
        if (before) left = lane + 32 * i - last_of(before);
        if (after) right = first_of(after) + 32 * i - lane;
    }
    return min(left, right);
}

extern "C" __global__ void __launch_bounds__(256) distance_within(const __grid_constant__ Within field) {
    __shared__ unsigned words[SEEN][WORDS];
    __shared__ unsigned short squares[SEEN][32], ahead[SEEN][32];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, height = field.height, width = field.width;
    const int across = (width + 31) / 32, down = (height + TILE - 1) / TILE;
    const int strip = blockIdx.x / across, image = strip / down, word = blockIdx.x - strip * across;
    const int top = (strip - image * down) * TILE, x = word * 32 + lane;
    if (!field.marks.near(top, word * 32, top + TILE, word * 32 + 32, LIMIT + field.reach)) return;
    for (int i = threadIdx.x; i < SEEN * WORDS; i += 256) {
        const int row = i / WORDS, column = i - row * WORDS, y = top - LIMIT + row, at = word - WORDS / 2 + column;
        const bool exists = y >= 0 && y < height && at >= 0 && at < across;
        words[row][column] = exists ? __ldg(field.bits + (static_cast<long long>(image) * height + y) * across + at) : 0;
    }
    __syncthreads();
    for (int row = warp; row < SEEN; row += 8) {
        const int away = nearest_bit(words[row], lane);
        squares[row][lane] = away <= LIMIT ? away * away : NOTHING;
    }
    __syncthreads();
    int run[SEEN / 8 + AHEAD - 1];  // a warp's rows, and the next ones
#pragma unroll
    for (int i = 0; i < SEEN / 8 + AHEAD - 1; ++i) {
        const int row = warp * (SEEN / 8) + i;
        run[i] = row < SEEN ? squares[row][lane] : NOTHING;
    }
#pragma unroll
    for (int i = 0; i < SEEN / 8; ++i) {
        int least = run[i];
#pragma unroll
        for (int k = 1; k < AHEAD; ++k) least = min(least, run[i + k]);
        ahead[warp * (SEEN / 8) + i][lane] = least;
    }
    __syncthreads();
    if (x >= width) return;
    float* distance = field.distance + image * field.stride + x;
    for (int row = LIMIT + warp; row < LIMIT + TILE; row += 8) {
        const int y = top + row - LIMIT;
        if (y >= height) return;
        int best = min(static_cast<int>(squares[row][lane]), LIMIT * LIMIT);
        for (int start = 1; start * start < best; start += AHEAD) {
            if (start * start + min(ahead[row + start][lane], ahead[row - start - AHEAD + 1][lane]) >= best) continue;
            for (int k = start; k < start + AHEAD && k * k < best; ++k)
                best = min(best, k * k + min(squares[row + k][lane], squares[row - k][lane]));
        }
        distance[y * width] = best < LIMIT * LIMIT ? sqrtf(static_cast<float>(best)) / LIMIT : field.beyond;
    }
}

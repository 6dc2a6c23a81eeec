// All levels of a mip pyramid in one launch: a block reads its 64×64 tile of level 0 once and writes what it owns of
// levels 1 to `tile_levels`, at most 6; the block that finishes last in a plane makes the coarser ones from those.
//
// mip_even: every extent halves without remainder down to level `tile_levels`, so nothing outside a tile is needed.
// mip_any:  any extent. A coarse texel of an odd level reaches one texel further, so tiles read past their right and
//           lower edge (`reach`); what they compute twice, they compute identically.
// update_region runs the same code on the tiles that a changed box touches, which every block lists for itself, and
// mip_deep makes the levels beyond the tile's own.
#include "scalar.cuh"

constexpr int TILE = 64;
enum Mode { MEAN = 0, MAX = 1, MIN = 2, NEAREST = 3 };

struct Mip {
    scalar* level[MAX_LEVELS];
    const unsigned char* modes;  // one a channel; null: all by mean
    const int* boxes;            // (B, box_count, 4) xyxy in level-0 pixels; null: everything changed
    int* finished;               // tiles finished in each plane, zero at the start; null: no deeper level to make here
    int height[MAX_LEVELS], width[MAX_LEVELS];
    int reach_y[MAX_LEVELS], reach_x[MAX_LEVELS];  // how far a tile must see past its edge on each level
    int levels, tile_levels, even_levels;  // how many halvings leave no remainder, from the finest on
    int channels, planes, box_count;
};

struct Tile {
    int x, y, plane, count;  // x and y in tiles; count is how many tiles a plane has
};

__device__ __forceinline__ Tile tile_at(const Mip& mip, int inside, int plane) {
    const int across = (mip.width[0] + TILE - 1) / TILE, down = (mip.height[0] + TILE - 1) / TILE;
    const int y = inside / across;
    return {inside - y * across, y, plane, across * down};
}

// Whether a changed box of an image touches what a tile reads.
__device__ bool changed(const Mip& mip, const Tile& tile, int image) {
    const int left = tile.x * TILE, right = left + TILE + mip.reach_x[0];
    const int top = tile.y * TILE, bottom = top + TILE + mip.reach_y[0];
    bool touched = false;
    for (int i = 0; i < mip.box_count && !touched; ++i) {
        const int* box = mip.boxes + (image * mip.box_count + i) * 4;
        touched = box[0] < box[2] && box[1] < box[3] && box[0] < right && box[2] > left && box[1] < bottom && box[3] > top;
    }
    return touched;
}

__device__ __forceinline__ int mode_of(const Mip& mip, const Tile& tile) {
    return mip.modes ? mip.modes[tile.plane % mip.channels] : MEAN;
}

__device__ __forceinline__ long long plane_start(const Mip& mip, const Tile& tile, int level) {
    return static_cast<long long>(tile.plane) * mip.height[level] * mip.width[level];
}

template <int MODE>
__device__ __forceinline__ float join(float a, float b) {
    return MODE == MEAN ? a + b : MODE == MAX ? fmaxf(a, b) : fminf(a, b);
}

template <int MODE>
__device__ __forceinline__ float join4(float a, float b, float c, float d) {
    const float all = join<MODE>(join<MODE>(a, b), join<MODE>(c, d));
    return MODE == MEAN ? all * 0.25f : all;
}

// The up to three fine texels that coarse texel i reads along an axis of `extent`, and their shares of its area.
struct Taps {
    int count;
    float share[3];
};

__device__ __forceinline__ Taps taps(int i, int extent) {
    if (extent == 1) return {1, {1.f, 0.f, 0.f}};
    if (extent % 2 == 0) return {2, {0.5f, 0.5f, 0.f}};
    const int half = extent / 2;
    const float unit = 1.f / extent;
    return {3, {(half - i) * unit, half * unit, (i + 1) * unit}};
}

// One coarse texel from the fine texels that read(row, column) gives, counted from the first one it reads.
template <int MODE, class Read>
__device__ __forceinline__ float shrink(int row, int column, int fine_height, int fine_width, Read read) {
    const Taps vertical = taps(row, fine_height), horizontal = taps(column, fine_width);
    float value = MODE == MEAN ? 0.f : MODE == MAX ? -__int_as_float(0x7f800000) : __int_as_float(0x7f800000);
#pragma unroll
    for (int dy = 0; dy < 3; ++dy) {
        if (dy >= vertical.count) break;
        float line = MODE == MEAN ? 0.f : value;
#pragma unroll
        for (int dx = 0; dx < 3; ++dx) {
            if (dx >= horizontal.count) break;
            const float texel = read(dy, dx);
            line = MODE == MEAN ? line + texel * horizontal.share[dx] : join<MODE>(line, texel);
        }
        value = MODE == MEAN ? value + line * vertical.share[dy] : line;
    }
    return value;
}

__device__ void nearest_level(const Mip& mip, const Tile& tile, int level, int y0, int y1, int x0, int x1) {
    const int height = mip.height[level], width = mip.width[level], columns = min(x1, width) - x0;
    const int rows = min(y1, height) - y0;
    const scalar* from = mip.level[0] + plane_start(mip, tile, 0);
    scalar* to = mip.level[level] + plane_start(mip, tile, level);
    for (int i = threadIdx.x; i < rows * columns; i += blockDim.x) {
        const int y = y0 + i / columns, x = x0 + i % columns;
        const long long source_y = (2LL * y + 1) * mip.height[0] / (2 * height);
        const long long source_x = (2LL * x + 1) * mip.width[0] / (2 * width);
        to[static_cast<long long>(y) * width + x] = from[source_y * mip.width[0] + source_x];
    }
}

__device__ void nearest_tile(const Mip& mip, const Tile& tile) {
    for (int level = 1; level <= mip.tile_levels; ++level) {
        const int side = TILE >> level, y = tile.y * side, x = tile.x * side;
        if (y < mip.height[level] && x < mip.width[level]) nearest_level(mip, tile, level, y, y + side, x, x + side);
    }
}

template <int MODE>
__device__ void deep_level(const Mip& mip, const Tile& tile, int level) {
    const int height = mip.height[level], width = mip.width[level];
    const int fine_height = mip.height[level - 1], fine_width = mip.width[level - 1];
    const scalar* fine = mip.level[level - 1] + plane_start(mip, tile, level - 1);
    scalar* coarse = mip.level[level] + plane_start(mip, tile, level);
    for (int i = threadIdx.x; i < height * width; i += blockDim.x) {
        const int y = i / width, x = i % width;
        const int from_y = fine_height > 1 ? 2 * y : 0, from_x = fine_width > 1 ? 2 * x : 0;
        const float value = shrink<MODE>(y, x, fine_height, fine_width, [&](int dy, int dx) {
            // Other blocks wrote these: read them from L2, where their writes are.
            return widen(__ldcg(fine + static_cast<long long>(from_y + dy) * fine_width + from_x + dx));
        });
        coarse[i] = narrow(value);
    }
}

__device__ void deep_levels(const Mip& mip, const Tile& tile, int mode) {
    for (int level = mip.tile_levels + 1; level < mip.levels; ++level) {
        if (mode == MEAN) deep_level<MEAN>(mip, tile, level);
        if (mode == MAX) deep_level<MAX>(mip, tile, level);
        if (mode == MIN) deep_level<MIN>(mip, tile, level);
        if (mode == NEAREST) nearest_level(mip, tile, level, 0, mip.height[level], 0, mip.width[level]);
        __syncthreads();
    }
}

// Whether this block is the last of its plane to finish; then it sees what all the others wrote.
__device__ bool last_of_plane(const Mip& mip, const Tile& tile) {
    __shared__ bool last;
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        last = atomicAdd(mip.finished + tile.plane, 1) == tile.count - 1;
        __threadfence();
    }
    __syncthreads();
    return last;
}

// 4×4 texels in registers: four texels of level 1 and one of level 2.
struct Quad {
    float part[2][2], all;
};

template <int MODE>
__device__ __forceinline__ Quad quad_of(const scalar* from, int width) {
    scalar4 row[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) row[i] = *reinterpret_cast<const scalar4*>(from + static_cast<long long>(i) * width);
    Quad quad;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const scalar4 above = row[2 * i], below = row[2 * i + 1];
        quad.part[i][0] = join4<MODE>(widen(above.x), widen(above.y), widen(below.x), widen(below.y));
        quad.part[i][1] = join4<MODE>(widen(above.z), widen(above.w), widen(below.z), widen(below.w));
    }
    quad.all = join4<MODE>(quad.part[0][0], quad.part[0][1], quad.part[1][0], quad.part[1][1]);
    return quad;
}

// y, x: of the level-2 texel.
__device__ __forceinline__ void write_quad(const Mip& mip, const Tile& tile, const Quad& quad, int y, int x) {
    scalar* to = mip.level[1] + plane_start(mip, tile, 1) + static_cast<long long>(2 * y) * mip.width[1] + 2 * x;
    *reinterpret_cast<scalar2*>(to) = {narrow(quad.part[0][0]), narrow(quad.part[0][1])};
    *reinterpret_cast<scalar2*>(to + mip.width[1]) = {narrow(quad.part[1][0]), narrow(quad.part[1][1])};
    mip.level[2][plane_start(mip, tile, 2) + static_cast<long long>(y) * mip.width[2] + x] = narrow(quad.all);
}

// A thread reduces 4×4 texels by itself (levels 1, 2), its warp 32×16 by shuffles (3, 4), its block the rest (5, 6).
template <int MODE>
__device__ void even_tile(const Mip& mip, const Tile& tile) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int x = tile.x * TILE + (warp & 1) * 32 + (lane & 7) * 4;
    const int y = tile.y * TILE + (warp >> 1) * 16 + (lane >> 3) * 4;
    const bool inside = x < mip.width[0] && y < mip.height[0];
    float value = 0.f;
    if (inside) {
        const scalar* from = mip.level[0] + plane_start(mip, tile, 0) + static_cast<long long>(y) * mip.width[0] + x;
        const Quad quad = quad_of<MODE>(from, mip.width[0]);
        write_quad(mip, tile, quad, y / 4, x / 4);
        value = quad.all;
    }
#pragma unroll
    for (int level = 3; level <= 4; ++level) {
        if (mip.tile_levels < level) return;
        const int step = 1 << (level - 3);
        value = join<MODE>(value, __shfl_xor_sync(~0u, value, step));
        value = join<MODE>(value, __shfl_xor_sync(~0u, value, step * 8));
        if (MODE == MEAN) value *= 0.25f;
        if (inside && lane % (2 * step) == 0 && (lane >> 3) % (2 * step) == 0)
            mip.level[level][plane_start(mip, tile, level) + static_cast<long long>(y >> level) * mip.width[level] +
                             (x >> level)] = narrow(value);
    }
    if (mip.tile_levels < 5) return;
    __shared__ float grid[4][4];
    __syncthreads();  // the block's previous tile may still be read
    if (lane % 4 == 0 && lane < 8) grid[warp >> 1][(warp & 1) * 2 + lane / 4] = value;
    __syncthreads();
    if (threadIdx.x >= 4) return;
    const int row = threadIdx.x / 2, column = threadIdx.x % 2;
    value = join4<MODE>(grid[2 * row][2 * column], grid[2 * row][2 * column + 1], grid[2 * row + 1][2 * column],
                        grid[2 * row + 1][2 * column + 1]);
    const int y5 = tile.y * 2 + row, x5 = tile.x * 2 + column;
    if (y5 < mip.height[5] && x5 < mip.width[5])
        mip.level[5][plane_start(mip, tile, 5) + static_cast<long long>(y5) * mip.width[5] + x5] = narrow(value);
    if (mip.tile_levels < 6) return;
    value = join<MODE>(value, __shfl_xor_sync(0xfu, value, 1));
    value = join<MODE>(value, __shfl_xor_sync(0xfu, value, 2));
    if (MODE == MEAN) value *= 0.25f;
    if (threadIdx.x == 0 && tile.y < mip.height[6] && tile.x < mip.width[6])
        mip.level[6][plane_start(mip, tile, 6) + static_cast<long long>(tile.y) * mip.width[6] + tile.x] = narrow(value);
}

// The next tiles from `first` on, of all images, that changed: every block finds the same list, in the same order.
__device__ int list_changed(const Mip& mip, int first, int tiles, int* list) {
    __shared__ int found[8];
    const int index = first + threadIdx.x, count = tile_at(mip, 0, 0).count;
    const bool touched = index < tiles && changed(mip, tile_at(mip, index % count, 0), index / count);
    const unsigned votes = __ballot_sync(~0u, touched);
    if (threadIdx.x % 32 == 0) found[threadIdx.x / 32] = __popc(votes);
    __syncthreads();
    int before = __popc(votes & ((1u << threadIdx.x % 32) - 1)), total = 0;
    for (int warp = 0; warp < 8; ++warp) {
        if (warp < threadIdx.x / 32) before += found[warp];
        total += found[warp];
    }
    if (touched) list[before] = index;
    __syncthreads();
    return total;
}

// A full build has one block a tile of a plane; update_region has fewer blocks, which share the changed tiles.
template <class Work>
__device__ __forceinline__ void for_each_tile(const Mip& mip, Work work) {
    const int count = tile_at(mip, 0, 0).count;
    if (!mip.boxes) {
        const Tile tile = tile_at(mip, blockIdx.x % count, blockIdx.x / count);
        const int mode = mode_of(mip, tile);
        work(tile, mode);
        if (mip.finished && last_of_plane(mip, tile)) deep_levels(mip, tile, mode);
        return;
    }
    __shared__ int list[256];
    const int tiles = count * (mip.planes / mip.channels);
    for (int first = 0; first < tiles; first += 256) {
        const int listed = list_changed(mip, first, tiles, list);
        for (int item = blockIdx.x; item < listed * mip.channels; item += gridDim.x) {
            const int index = list[item / mip.channels], image = index / count;
            const Tile tile = tile_at(mip, index % count, image * mip.channels + item % mip.channels);
            work(tile, mode_of(mip, tile));
        }
        __syncthreads();
    }
}

extern "C" __global__ void __launch_bounds__(256) mip_even(const __grid_constant__ Mip mip) {
    for_each_tile(mip, [&](const Tile& tile, int mode) {
        if (mode == MEAN) even_tile<MEAN>(mip, tile);
        if (mode == MAX) even_tile<MAX>(mip, tile);
        if (mode == MIN) even_tile<MIN>(mip, tile);
        if (mode == NEAREST) nearest_tile(mip, tile);
    });
}

extern "C" __global__ void __launch_bounds__(256) mip_deep(const __grid_constant__ Mip mip) {
    const Tile tile = tile_at(mip, 0, blockIdx.x);
    deep_levels(mip, tile, mode_of(mip, tile));
}

// A tile's share of one level with what it must see beyond: where it starts, how far it owns, how far it sees.
struct Span {
    int start, owned, seen;
};

__device__ __forceinline__ Span span(int tile, int level, int extent, int reach) {
    const int side = TILE >> level, start = tile * side;
    return {start, min(side, extent - start), min(side + reach, extent - start)};
}

constexpr int LARGEST = TILE / 2 + 31, SECOND = TILE / 4 + 15;  // a tile's level 1 and 2 with the furthest reach

// Where the first two halvings leave no remainder, a thread makes texels of levels 1 and 2 from 4×4 texels in registers.
template <int MODE>
__device__ void two_even_levels(const Mip& mip, const Tile& tile, const Span& rows, const Span& columns, float* second) {
    const scalar* image = mip.level[0] + plane_start(mip, tile, 0);
    const int pitch = columns.seen;
    for (int i = threadIdx.x; i < rows.seen * pitch; i += blockDim.x) {
        const int row = i / pitch, column = i - row * pitch;
        const int y = rows.start + row, x = columns.start + column;
        const Quad quad = quad_of<MODE>(image + static_cast<long long>(4 * y) * mip.width[0] + 4 * x, mip.width[0]);
        second[i] = quad.all;
        if (row < rows.owned && column < columns.owned) write_quad(mip, tile, quad, y, x);
    }
}

// Level 1 at any extent. A thread goes down a column, so that a row which two coarse texels share is read once.
template <int MODE>
__device__ void first_level(const Mip& mip, const Tile& tile, const Span& rows, const Span& columns, float* coarse) {
    const int height = mip.height[0], width = mip.width[0], pitch = columns.seen;
    const int strips = max(1, 256 / pitch), strip = threadIdx.x / pitch, column = threadIdx.x - strip * pitch;
    if (strip >= strips) return;
    const int begin = rows.seen * strip / strips, end = rows.seen * (strip + 1) / strips;
    const int x = columns.start + column, step_y = height > 1 ? 2 : 0;
    const Taps across = taps(x, width);
    const scalar* image = mip.level[0] + plane_start(mip, tile, 0) + (width > 1 ? 2 * x : 0);
    scalar* to = mip.level[1] + plane_start(mip, tile, 1) + x;
    const auto line = [&](int y) {
        const scalar* texels = image + static_cast<long long>(y) * width;
        float value = widen(texels[0]);
        if (MODE == MEAN) value *= across.share[0];
#pragma unroll
        for (int dx = 1; dx < 3; ++dx)
            if (dx < across.count) value = MODE == MEAN ? value + widen(texels[dx]) * across.share[dx] : join<MODE>(value, widen(texels[dx]));
        return value;
    };
    float shared_line = 0.f;
    for (int row = begin; row < end; ++row) {
        const int y = rows.start + row;
        const Taps down = taps(y, height);
        float value = row > begin && down.count == 3 ? shared_line : line(step_y * y);
        if (MODE == MEAN) value *= down.share[0];
#pragma unroll
        for (int dy = 1; dy < 3; ++dy)
            if (dy < down.count) {
                shared_line = line(step_y * y + dy);
                value = MODE == MEAN ? value + shared_line * down.share[dy] : join<MODE>(value, shared_line);
            }
        coarse[row * pitch + column] = value;
        if (row < rows.owned && column < columns.owned) to[static_cast<long long>(y) * mip.width[1]] = narrow(value);
    }
}

template <int MODE>
__device__ void any_tile(const Mip& mip, const Tile& tile, float* odd, float* even) {
    const int done = mip.even_levels >= 2 ? 2 : 1;
    const Span rows = span(tile.y, done, mip.height[done], mip.reach_y[done]);
    const Span columns = span(tile.x, done, mip.width[done], mip.reach_x[done]);
    if (rows.seen <= 0 || columns.seen <= 0) return;
    if (done == 2)
        two_even_levels<MODE>(mip, tile, rows, columns, even);
    else
        first_level<MODE>(mip, tile, rows, columns, odd);
    __syncthreads();
    for (int level = done + 1; level <= mip.tile_levels; ++level) {
        const int fine_height = mip.height[level - 1], fine_width = mip.width[level - 1];
        const Span rows = span(tile.y, level, mip.height[level], mip.reach_y[level]);
        const Span columns = span(tile.x, level, mip.width[level], mip.reach_x[level]);
        if (rows.seen <= 0 || columns.seen <= 0) break;
        float* coarse = level % 2 ? odd : even;
        const float* fine = level % 2 ? even : odd;
        const int pitch = columns.seen, fine_pitch = span(tile.x, level - 1, fine_width, mip.reach_x[level - 1]).seen;
        scalar* to = mip.level[level] + plane_start(mip, tile, level);
        for (int i = threadIdx.x; i < rows.seen * pitch; i += blockDim.x) {
            const int row = i / pitch, column = i - row * pitch;
            const int y = rows.start + row, x = columns.start + column;
            const int from = (fine_height > 1 ? 2 * row : 0) * fine_pitch + (fine_width > 1 ? 2 * column : 0);
            const float value = shrink<MODE>(y, x, fine_height, fine_width, [&](int dy, int dx) { return fine[from + dy * fine_pitch + dx]; });
            coarse[i] = value;
            if (row < rows.owned && column < columns.owned) to[static_cast<long long>(y) * mip.width[level] + x] = narrow(value);
        }
        __syncthreads();
    }
}

extern "C" __global__ void __launch_bounds__(256) mip_any(const __grid_constant__ Mip mip) {
    __shared__ float odd[LARGEST * LARGEST], even[SECOND * SECOND];  // the tile's levels of odd and of even number
    for_each_tile(mip, [&](const Tile& tile, int mode) {
        if (mode == MEAN) any_tile<MEAN>(mip, tile, odd, even);
        if (mode == MAX) any_tile<MAX>(mip, tile, odd, even);
        if (mode == MIN) any_tile<MIN>(mip, tile, odd, even);
        if (mode == NEAREST) nearest_tile(mip, tile);
    });
}

// The transpose of one halving by mean: what a fine texel receives from the coarse texels that read it, plus its own.
struct MipBackward {
    const float* fine;    // gradient that reached this level directly; null: none
    const float* coarse;  // gradient of the level above, complete
    float* total;
    int height, width, coarse_height, coarse_width;
    int aligned;          // rows begin on 16 bytes
};

struct Readers {
    int count, index[2];
    float share[2];
};

// Which coarse texels read fine texel j, and how much of their area it is.
__device__ __forceinline__ Readers readers(int j, int extent) {
    if (extent == 1) return {1, {0, 0}, {1.f, 0.f}};
    if (extent % 2 == 0) return {1, {j / 2, 0}, {0.5f, 0.f}};
    const int half = extent / 2;
    const float unit = 1.f / extent;
    if (j % 2) return {1, {j / 2, 0}, {half * unit, 0.f}};
    Readers both = {0, {0, 0}, {0.f, 0.f}};
    if (j / 2 < half) both.index[both.count] = j / 2, both.share[both.count++] = (half - j / 2) * unit;
    if (j > 0) both.index[both.count] = j / 2 - 1, both.share[both.count++] = (j / 2) * unit;
    return both;
}

// A thread serves four texels of a row, a block 256 × 4.
extern "C" __global__ void __launch_bounds__(256) mip_backward(const __grid_constant__ MipBackward step) {
    const int across = (step.width + 255) / 256, down = (step.height + 3) / 4;
    const int strip = blockIdx.x / across, plane = strip / down;
    const int x = (blockIdx.x - strip * across) * 256 + threadIdx.x % 64 * 4;
    const int y = (strip - plane * down) * 4 + threadIdx.x / 64;
    if (x >= step.width || y >= step.height) return;
    const long long start = (static_cast<long long>(plane) * step.height + y) * step.width + x;
    const Readers vertical = readers(y, step.height);
    const float* coarse = step.coarse + static_cast<long long>(plane) * step.coarse_height * step.coarse_width;
    const int count = min(4, step.width - x);
    float total[4] = {0.f, 0.f, 0.f, 0.f};
    if (step.fine && step.aligned) *reinterpret_cast<float4*>(total) = *reinterpret_cast<const float4*>(step.fine + start);
    if (step.fine && !step.aligned)
        for (int i = 0; i < count; ++i) total[i] = step.fine[start + i];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        if (i >= count) break;
        const Readers horizontal = readers(x + i, step.width);
#pragma unroll
        for (int a = 0; a < 2; ++a)
#pragma unroll
            for (int b = 0; b < 2; ++b)
                if (a < vertical.count && b < horizontal.count)
                    total[i] += vertical.share[a] * horizontal.share[b] * coarse[vertical.index[a] * step.coarse_width + horizontal.index[b]];
    }
    if (step.aligned) *reinterpret_cast<float4*>(step.total + start) = *reinterpret_cast<const float4*>(total);
    if (!step.aligned)
        for (int i = 0; i < count; ++i) step.total[start + i] = total[i];
}

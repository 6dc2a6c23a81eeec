// Up to seven levels of a mip pyramid in one launch: a block reads its 64×64 tile of the base level once and writes
// its part of the coarser levels. Another launch continues a deeper pyramid from the last level made: that is a few thousand
// texels, and faster than letting the last block of the first launch do it.
//
// mip_even: every extent halves without remainder: six levels, and nothing outside a tile is needed.
// mip_any:  any extent, four levels (six where one tile holds everything). A coarse texel of an odd level reaches one
//           texel further, so tiles read beyond their right and lower edge (`reach`). Two tiles that compute the same texel
//           get the same bits.
// mip_more: mip_any for the launches that continue. All launches may start early, so levels are not read through __ldg,
//           which must not be used for memory that is written meanwhile.
// update_region runs the same code on the tiles that changed (mip.cuh).
#include "mip.cuh"

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

// Halving an axis of `extent`: a coarse texel is a mean of up to three fine ones, weighted by the area they cover.
struct Halving {
    int count;
    float half, unit;

    __device__ explicit Halving(int extent) : count(extent == 1 ? 1 : 2 + extent % 2), half(extent / 2), unit(1.f / extent) {}

    __device__ int first(int coarse) const { return count > 1 ? 2 * coarse : 0; }

    __device__ float share(float coarse, int tap) const {
        if (count < 3) return count == 2 ? 0.5f : 1.f;
        return unit * (tap == 0 ? half - coarse : tap == 1 ? half : coarse + 1.f);
    }
};

// One coarse texel from fine ones: read(row, column) counts from the first fine texel.
template <int MODE, class Read>
__device__ __forceinline__ float shrink(const Halving& down, const Halving& across, float y, float x, Read read) {
    float value = MODE == MEAN ? 0.f : MODE == MAX ? -__int_as_float(0x7f800000) : __int_as_float(0x7f800000);
#pragma unroll
    for (int dy = 0; dy < 3; ++dy) {
        if (dy >= down.count) break;
        float line = MODE == MEAN ? 0.f : value;
#pragma unroll
        for (int dx = 0; dx < 3; ++dx) {
            if (dx >= across.count) break;
            const float texel = read(dy, dx);
            line = MODE == MEAN ? line + texel * across.share(x, dx) : join<MODE>(line, texel);
        }
        value = MODE == MEAN ? value + line * down.share(y, dy) : line;
    }
    return value;
}

__device__ void nearest_level(const Mip& mip, const Tile& tile, int level, int y0, int y1, int x0, int x1) {
    const int height = mip.height[level], width = mip.width[level], columns = min(x1, width) - x0;
    const int rows = min(y1, height) - y0;
    const scalar* from = mip.finest + static_cast<long long>(tile.plane) * mip.finest_height * mip.finest_width;
    scalar* to = mip.level[level] + plane_start(mip, tile, level);
    for (int i = threadIdx.x; i < rows * columns; i += blockDim.x) {
        const int y = y0 + i / columns, x = x0 + i % columns;
        const long long source_y = (2LL * y + 1) * mip.finest_height / (2 * height);
        const long long source_x = (2LL * x + 1) * mip.finest_width / (2 * width);
        to[static_cast<long long>(y) * width + x] = from[source_y * mip.finest_width + source_x];
    }
}

__device__ void nearest_tile(const Mip& mip, const Tile& tile) {
    for (int level = 1; level <= mip.levels; ++level) {
        const int side = TILE >> level, y = tile.y * side, x = tile.x * side;
        if (y < mip.height[level] && x < mip.width[level]) nearest_level(mip, tile, level, y, y + side, x, x + side);
    }
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

// Whether a box touches the 32×16 texels of a warp at x, y. Each lane checks one box.
__device__ __forceinline__ bool warp_changed(const Mip& mip, const Tile& tile, int lane, int x, int y) {
    if (!mip.boxes || mip.levels > 4 || mip.box_count > 32) return true;
    bool touched = false;
    if (lane < mip.box_count) {
        const int4 box = box_on_base(mip, tile.plane / mip.channels * mip.box_count + lane);
        touched = box.x < x + 32 && box.z > x && box.y < y + 16 && box.w > y;
    }
    return __any_sync(~0u, touched);
}

// A thread reduces 4×4 texels (levels 1, 2), a warp 32×16 by shuffles (levels 3, 4), the block the rest (levels 5, 6).
template <int MODE>
__device__ void even_tile(const Mip& mip, const Tile& tile) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int warp_x = tile.x * TILE + (warp & 1) * 32, warp_y = tile.y * TILE + (warp >> 1) * 16;
    if (!warp_changed(mip, tile, lane, warp_x, warp_y)) return;
    const int x = warp_x + (lane & 7) * 4, y = warp_y + (lane >> 3) * 4;
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
        if (mip.levels < level) return;
        const int step = 1 << (level - 3);
        value = join<MODE>(value, __shfl_xor_sync(~0u, value, step));
        value = join<MODE>(value, __shfl_xor_sync(~0u, value, step * 8));
        if (MODE == MEAN) value *= 0.25f;
        if (inside && lane % (2 * step) == 0 && (lane >> 3) % (2 * step) == 0)
            mip.level[level][plane_start(mip, tile, level) + static_cast<long long>(y >> level) * mip.width[level] +
                             (x >> level)] = narrow(value);
    }
    if (mip.levels < 5) return;
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
    if (mip.levels < 6) return;
    value = join<MODE>(value, __shfl_xor_sync(0xfu, value, 1));
    value = join<MODE>(value, __shfl_xor_sync(0xfu, value, 2));
    if (MODE == MEAN) value *= 0.25f;
    if (threadIdx.x == 0 && tile.y < mip.height[6] && tile.x < mip.width[6])
        mip.level[6][plane_start(mip, tile, 6) + static_cast<long long>(tile.y) * mip.width[6] + tile.x] = narrow(value);
}

extern "C" __global__ void __launch_bounds__(256, 4) mip_even(const __grid_constant__ Mip mip) {
    for_each_tile(mip, [&](const Tile& tile, int mode) {
        if (mode == MEAN) even_tile<MEAN>(mip, tile);
        if (mode == MAX) even_tile<MAX>(mip, tile);
        if (mode == MIN) even_tile<MIN>(mip, tile);
        if (mode == NEAREST) nearest_tile(mip, tile);
    });
}

// A tile on one level: its start, the number of texels that it owns, and the number that it reads.
struct Span {
    int start, owned, seen;
};

__device__ __forceinline__ Span span(int tile, int level, int extent, int reach) {
    const int side = TILE >> level, start = tile * side;
    return {start, min(side, extent - start), min(side + reach, extent - start)};
}

// The most texels that a tile reads of levels 1 and 2: three odd levels above level 1 add 7 texels, two add 3.
constexpr int SEEN1 = TILE / 2 + 7, SEEN2 = TILE / 4 + 3;

struct Seen {
    float odd[SEEN1 * SEEN1], even[SEEN2 * SEEN2];  // levels of odd and of even number

    __device__ float* of(int level) { return level % 2 ? odd : even; }
};

// Level 1 from memory. A thread walks down a column, so that weights are computed once and a row that two coarse texels
// share is read once.
template <int MODE>
__device__ void first_level(const Mip& mip, const Tile& tile, const Span& rows, const Span& columns, float* coarse) {
    const int strips = min(256 / columns.seen, rows.seen), strip = threadIdx.x / columns.seen;
    if (strip >= strips) return;
    const int column = threadIdx.x - strip * columns.seen, x = columns.start + column;
    const int begin = rows.seen * strip / strips, end = rows.seen * (strip + 1) / strips;
    const Halving down(mip.height[0]), across(mip.width[0]);
    const float share[3] = {across.share(x, 0), across.share(x, 1), across.share(x, 2)};
    const scalar* image = mip.level[0] + plane_start(mip, tile, 0) + across.first(x);
    scalar* to = mip.level[1] + plane_start(mip, tile, 1) + static_cast<long long>(rows.start) * mip.width[1] + x;
    const auto line = [&](int y) {
        const scalar* texels = image + static_cast<long long>(y) * mip.width[0];
        const float a = widen(texels[0]);
        if (across.count == 1) return a;
        const float b = widen(texels[1]);
        if (across.count == 2) return MODE == MEAN ? (a + b) * 0.5f : join<MODE>(a, b);
        const float c = widen(texels[2]);
        return MODE == MEAN ? a * share[0] + b * share[1] + c * share[2] : join<MODE>(join<MODE>(a, b), c);
    };
    float above = line(down.first(rows.start + begin));
#pragma unroll 2
    for (int row = begin; row < end; ++row) {
        const int y = down.first(rows.start + row);
        float value = above;
        if (down.count == 2) {
            const float below = line(y + 1);
            value = MODE == MEAN ? (above + below) * 0.5f : join<MODE>(above, below);
            if (row + 1 < end) above = line(y + 2);
        } else if (down.count == 3) {
            const float middle = line(y + 1), below = line(y + 2), at = rows.start + row;
            value = MODE == MEAN ? above * down.share(at, 0) + middle * down.share(at, 1) + below * down.share(at, 2)
                                 : join<MODE>(join<MODE>(above, middle), below);
            above = below;
        }
        coarse[row * columns.seen + column] = value;
        if (row < rows.owned && column < columns.owned) to[static_cast<long long>(row) * mip.width[1]] = narrow(value);
    }
}

template <int MODE>
__device__ void any_tile(const Mip& mip, const Tile& tile, Seen& seen) {
    Span rows = span(tile.y, 1, mip.height[1], mip.reach_y[1]), columns = span(tile.x, 1, mip.width[1], mip.reach_x[1]);
    if (rows.seen <= 0 || columns.seen <= 0) return;
    first_level<MODE>(mip, tile, rows, columns, seen.odd);
    __syncthreads();
    for (int level = 2; level <= mip.levels; ++level) {
        const Halving down(mip.height[level - 1]), across(mip.width[level - 1]);
        const int fine_pitch = columns.seen;
        rows = span(tile.y, level, mip.height[level], mip.reach_y[level]);
        columns = span(tile.x, level, mip.width[level], mip.reach_x[level]);
        if (rows.seen <= 0 || columns.seen <= 0) break;
        const float* fine = seen.of(level - 1);
        float* coarse = seen.of(level);
        scalar* to = mip.level[level] + plane_start(mip, tile, level);
        const float inverse = 1.f / columns.seen;  // exact enough to divide the few hundred texels of a tile
        for (int i = threadIdx.x; i < rows.seen * columns.seen; i += 256) {
            const int row = (i + 0.5f) * inverse, column = i - row * columns.seen;
            const int y = rows.start + row, x = columns.start + column;
            const float* from = fine + down.first(row) * fine_pitch + across.first(column);
            const float value = shrink<MODE>(down, across, y, x, [&](int dy, int dx) { return from[dy * fine_pitch + dx]; });
            coarse[i] = value;
            if (row < rows.owned && column < columns.owned) to[static_cast<long long>(y) * mip.width[level] + x] = narrow(value);
        }
        __syncthreads();
    }
}

__device__ __forceinline__ void any_tiles(const Mip& mip) {
    __shared__ Seen seen;
    for_each_tile(mip, [&](const Tile& tile, int mode) {
        if (mode == MEAN) any_tile<MEAN>(mip, tile, seen);
        if (mode == MAX) any_tile<MAX>(mip, tile, seen);
        if (mode == MIN) any_tile<MIN>(mip, tile, seen);
        if (mode == NEAREST) nearest_tile(mip, tile);
    });
}

// With many tiles, more blocks per multiprocessor hide latency. The launches that continue have few tiles, and a tile is done
// sooner with more registers.
extern "C" __global__ void __launch_bounds__(256, 5) mip_any(const __grid_constant__ Mip mip) { any_tiles(mip); }
extern "C" __global__ void __launch_bounds__(256, 4) mip_more(const __grid_constant__ Mip mip) { any_tiles(mip); }

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

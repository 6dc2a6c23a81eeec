// Which tiles of a pyramid a launch makes (mip.cu): all of them, those that a changed box touches, or those within reach of a
// marked tile. Every block makes the list for itself.
#pragma once
#include "marks.cuh"
#include "scalar.cuh"
#include "warp.cuh"

constexpr int TILE = 64;
constexpr int FAR = 1 << 20;  // beyond every image: boxes are clamped to it
enum Mode { MEAN = 0, MAX = 1, MIN = 2, NEAREST = 3 };
constexpr int UNCHANGED = -1, MOVED = -2;  // reach of a channel that is left alone; of one for which `either` applies

struct Mip {
    scalar* level[MAX_LEVELS];     // the base level and those to be made from it
    const scalar* finest;          // level 0 of the whole pyramid, where labels are taken from
    const unsigned char* modes;    // one per channel; null: all are means
    const int4* boxes;             // (B, box_count): x0 y0 x1 y1 in texels of level 0; null: see marks
    Marks marks, either;           // on level 0; either: marked now or in the frame before
    const short* reach;            // one per channel: reach of a change in texels of level 0, UNCHANGED or MOVED; null: 0
    int furthest;                  // the greatest reach
    int height[MAX_LEVELS], width[MAX_LEVELS];
    int reach_y[MAX_LEVELS], reach_x[MAX_LEVELS];  // texels that a tile reads beyond its edge, per level
    int finest_height, finest_width;
    int halvings;                  // from level 0 to the base level
    int levels;                    // to be made
    int channels, planes;
    int box_count;                 // 1 for marks; 0: one block per tile
};

struct Tile {
    int x, y, plane;  // x and y in tiles
};

// The texels of the base level that box i may have changed. An empty box lies outside every tile.
__device__ __forceinline__ int4 box_on_base(const Mip& mip, int i) {
    int4 box = __ldg(mip.boxes + i);
    const int halvings = mip.halvings;
    if (box.x >= box.z || box.y >= box.w) return {-1, -1, -1, -1};
    box = {max(box.x, -FAR), max(box.y, -FAR), min(box.z, FAR), min(box.w, FAR)};
    if (halvings == 0) return box;
    // A change reaches the coarse texel that holds it and, with odd extents, up to two before that.
    return {(box.x >> halvings) - 2, (box.y >> halvings) - 2, ((box.z - 1) >> halvings) + 1, ((box.w - 1) >> halvings) + 1};
}

// Whether a tile of the base level is within reach of a marked tile; `more` as in box_on_base.
__device__ __forceinline__ bool touched(const Mip& mip, const Marks& marks, int x, int y, int reach) {
    const int halvings = mip.halvings, more = halvings ? 2 : 0, top = y * TILE, left = x * TILE;
    return marks.near(top << halvings, left << halvings, (top + TILE + mip.reach_y[0] + more) << halvings,
                      (left + TILE + mip.reach_x[0] + more) << halvings, reach);
}

// `touched` for one channel.
__device__ __forceinline__ bool channel_touched(const Mip& mip, int x, int y, int channel) {
    if (!mip.marks.total) return true;
    const int reach = mip.reach ? mip.reach[channel] : 0;
    return reach != UNCHANGED && touched(mip, reach == MOVED ? mip.either : mip.marks, x, y, max(reach, 0));
}

// The changed tiles of an image: first one bit per tile, then a list. Every block makes the same list.
constexpr int MARK_WORDS = 2048, LISTED = 2048;

struct Changed {
    unsigned marks[MARK_WORDS];   // a row of tiles begins a word
    unsigned short list[LISTED];  // tiles, counted from the first that was asked for
    int in_warp[8];

    __device__ void mark(const Mip& mip, int image, int across, int down) {
        const int pitch = (across + 31) / 32;
        for (int i = threadIdx.x; i < pitch * down; i += 256) marks[i] = 0;
        __syncthreads();
        for (int i = threadIdx.x; i < mip.box_count; i += 256) {
            const int4 box = box_on_base(mip, image * mip.box_count + i);
            const int left = max((box.x - mip.reach_x[0]) >> 6, 0), right = min((box.z - 1) >> 6, across - 1);
            const int top = max((box.y - mip.reach_y[0]) >> 6, 0), bottom = min((box.w - 1) >> 6, down - 1);
            for (int word = left / 32; word <= right / 32 && left <= right; ++word) {
                const unsigned from = word == left / 32 ? ~0u << left % 32 : ~0u;
                const unsigned upto = word == right / 32 ? ~0u >> (31 - right % 32) : ~0u;
                for (int y = top; y <= bottom; ++y) atomicOr(marks + y * pitch + word, from & upto);
            }
        }
        __syncthreads();
    }

    // By marks, with the greatest reach of all channels.
    __device__ void mark_by_sums(const Mip& mip, int across, int down) {
        const int pitch = (across + 31) / 32;
        for (int i = threadIdx.x; i < pitch * down; i += 256) marks[i] = 0;
        __syncthreads();
        for (int i = threadIdx.x; i < across * down; i += 256) {
            const int y = i / across, x = i - y * across;
            if (touched(mip, mip.either, x, y, mip.furthest)) atomicOr(marks + y * pitch + x / 32, 1u << x % 32);
        }
        __syncthreads();
    }

    // Lists the changed tiles among first … first + LISTED; returns how many they are.
    __device__ int find(int first, int tiles, int across) {
        const int pitch = (across + 31) / 32, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        unsigned mine = 0;
        const int start = first + threadIdx.x * 8;
        int y = start / across, x = start - y * across;
        for (int i = 0; i < 8 && start + i < tiles; ++i) {
            mine |= (marks[y * pitch + x / 32] >> x % 32 & 1) << i;
            if (++x == across) x = 0, ++y;
        }
        int upto = sum_to_lane(__popc(mine)), total = 0;
        if (lane == 31) in_warp[warp] = upto;
        __syncthreads();
        for (int i = 0; i < 8; ++i) {
            if (i < warp) upto += in_warp[i];
            total += in_warp[i];
        }
        for (int at = upto - __popc(mine); mine; mine &= mine - 1) list[at++] = threadIdx.x * 8 + __ffs(mine) - 1;
        __syncthreads();
        return total;
    }
};

// A full build has one block per tile and plane; an update of many tiles has fewer, which share the changed tiles.
template <class Work>
__device__ __forceinline__ void for_each_tile(const Mip& mip, Work work) {
    const int across = (mip.width[0] + TILE - 1) / TILE, down = (mip.height[0] + TILE - 1) / TILE, tiles = across * down;
    const auto mode_of = [&](int plane) { return mip.modes ? mip.modes[plane % mip.channels] : MEAN; };
    let_next_start();
    if (!mip.box_count) {  // no search: all tiles; or few, of which each checks itself
        const int index = blockIdx.x % tiles, plane = blockIdx.x / tiles;
        const Tile tile = {index % across, index / across, plane};
        const bool wanted = channel_touched(mip, tile.x, tile.y, plane % mip.channels);
        const int mode = mode_of(plane);
        wait_for_previous();
        if (wanted) work(tile, mode);
        return;
    }
    __shared__ Changed changed;
    for (int image = 0; image < mip.planes / mip.channels; ++image) {
        if (mip.boxes) changed.mark(mip, image, across, down);
        else changed.mark_by_sums(mip, across, down);
        for (int first = 0; first < tiles; first += LISTED) {
            const int items = changed.find(first, tiles, across) * mip.channels;
            wait_for_previous();  // the list of tiles is made while the previous kernel still writes the base level
            for (int item = blockIdx.x; item < items; item += gridDim.x) {
                const int index = first + changed.list[item / mip.channels], channel = item % mip.channels;
                const Tile tile = {index % across, index / across, image * mip.channels + channel};
                if (!mip.reach || channel_touched(mip, tile.x, tile.y, channel)) work(tile, mode_of(tile.plane));
            }
            __syncthreads();
        }
    }
}

// Which tiles of an image changed, as a summed-area table: four reads say whether any tile of a rectangle did. A kernel asks for
// the rectangle that it would write, grown by the reach of a change, and skips it if nothing changed.
#pragma once

struct Marks {
    const int* total;  // (rows + 1, columns + 1): marked tiles above and left of each corner; null: all are marked
    int rows, columns;
    float inverse;     // 1 / side of a tile in pixels

    // The tile of pixel `at`, clamped to the `count` tiles. Exact up to 2²⁰ pixels.
    __device__ int tile_at(int at, int count) const {
        return min(static_cast<int>((max(at, 0) + 0.5f) * inverse), count - 1);
    }

    // Whether a marked tile lies within `reach` pixels of a rectangle; bottom and right are exclusive.
    __device__ bool near(int top, int left, int bottom, int right, int reach) const {
        if (!total) return true;
        const int y0 = tile_at(top - reach, rows), x0 = tile_at(left - reach, columns);
        const int y1 = tile_at(bottom - 1 + reach, rows) + 1, x1 = tile_at(right - 1 + reach, columns) + 1;
        const int *upper = total + y0 * (columns + 1), *lower = total + y1 * (columns + 1);
        return lower[x1] - upper[x1] - lower[x0] + upper[x0] > 0;
    }

    // The same for a rectangle of texels of a mip level, `reach` in texels. A pixel reaches the texel that holds it and, with
    // odd extents, up to two before that.
    __device__ bool near_on_level(int level, int top, int left, int bottom, int right, int reach) const {
        const int more = level ? reach + 2 : reach;
        return near((top - reach) << level, (left - reach) << level, (bottom + more) << level, (right + more) << level, 0);
    }
};

// The tiles that a kernel makes: their count, then their numbers, with room for one per block. Without a list, block i makes
// tile i.
struct Listed {
    const int* list;

    // The number of this block's tile, or −1 if it has none.
    __device__ int own() const {
        if (!list) return blockIdx.x;
        const int count = list[0], number = list[1 + blockIdx.x];
        return static_cast<int>(blockIdx.x) < count ? number : -1;
    }
};

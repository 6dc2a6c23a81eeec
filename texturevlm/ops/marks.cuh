// Which tiles of an image changed, as a table of sums: one look says whether any of a rectangle did. A kernel that makes
// part of something asks for its part, grown by how far a pixel acts, and leaves it as it is where nothing changed.
#pragma once

struct Marks {
    const int* total;  // (rows + 1, columns + 1): how many tiles above and left of a corner are marked; null: all are
    int rows, columns;
    float inverse;     // of a tile's side in pixels

    // The tile that pixel `at` lies in, of `count`; before the first one lies in that. Exact up to 2²⁰ pixels.
    __device__ int tile_at(int at, int count) const {
        return min(static_cast<int>((max(at, 0) + 0.5f) * inverse), count - 1);
    }

    // Whether a marked tile lies within `reach` pixels of a rectangle; bottom and right are the first beyond it.
    __device__ bool near(int top, int left, int bottom, int right, int reach) const {
        if (!total) return true;
        const int y0 = tile_at(top - reach, rows), x0 = tile_at(left - reach, columns);
        const int y1 = tile_at(bottom - 1 + reach, rows) + 1, x1 = tile_at(right - 1 + reach, columns) + 1;
        const int *upper = total + y0 * (columns + 1), *lower = total + y1 * (columns + 1);
        return lower[x1] - upper[x1] - lower[x0] + upper[x0] > 0;
    }

    // The same for a rectangle of texels of a mip level, `reach` in texels. A pixel acts on the texel above it and, where
    // extents are odd, on up to two before that.
    __device__ bool near_on_level(int level, int top, int left, int bottom, int right, int reach) const {
        const int more = level ? reach + 2 : reach;
        return near((top - reach) << level, (left - reach) << level, (bottom + more) << level, (right + more) << level, 0);
    }
};

// The tiles that a kernel makes, listed beforehand: how many they are, and their numbers, with room for as many as blocks.
// Without a list a block makes the tile of its own number.
struct Listed {
    const int* list;

    // The number of this block's tile; −1: it has none.
    __device__ int own() const {
        if (!list) return blockIdx.x;
        const int count = list[0], number = list[1 + blockIdx.x];
        return static_cast<int>(blockIdx.x) < count ? number : -1;
    }
};

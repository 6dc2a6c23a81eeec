// Which tiles of an image changed, as a table of sums: one look says whether any of a rectangle did. A kernel that makes
// part of something asks for its part, grown by how far a pixel acts, and leaves it as it is where nothing changed.
#pragma once
#include "scalar.cuh"

struct Marks {
    const int* total;  // (rows + 1, columns + 1): how many tiles above and left of a corner are marked; null: all are
    int rows, columns, tile;

    // Whether a marked tile lies within `reach` pixels of a rectangle; bottom and right are the first beyond it.
    __device__ bool near(int top, int left, int bottom, int right, int reach) const {
        if (!total) return true;
        const int y0 = min(max(top - reach, 0) / tile, rows - 1), x0 = min(max(left - reach, 0) / tile, columns - 1);
        const int y1 = min(max(bottom - 1 + reach, 0) / tile, rows - 1) + 1;
        const int x1 = min(max(right - 1 + reach, 0) / tile, columns - 1) + 1;
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

// The tiles that a kernel makes, listed beforehand: how many they are, and their numbers; at least as many words as blocks
// follow the first. Without a list a block makes the tile of its own number.
struct Listed {
    const int* list;

    // The number of this block's tile, once the kernel before is done; −1: it has none. The list was there before that
    // kernel began. Blocks without a tile do not wait, but for the first, since one must (launch.py, `early`).
    __device__ int wait_for_own() const {
        const int count = list ? list[0] : gridDim.x, number = list ? list[1 + blockIdx.x] : blockIdx.x;
        const bool has = static_cast<int>(blockIdx.x) < count;
        if (has || blockIdx.x == 0) wait_for_previous();
        return has ? number : -1;
    }
};

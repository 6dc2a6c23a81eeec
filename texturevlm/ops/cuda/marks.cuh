// Which tiles of an image changed, as a table of sums: one look says whether any of a rectangle did. A kernel that makes
// part of something asks for its part, grown by how far a pixel acts, and leaves it as it is where nothing changed.
#pragma once

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

// Shared by the kernels for text: windows, tiles, parameters.
#pragma once
#include "marks.cuh"

constexpr int CONTRAST = 15, RULED = 25, LETTER = 5, GAP = 17, DASH_ROWS = 7, DASH_COLUMNS = 5, MARGIN = 4;
constexpr int STROKES_TILE = 32, LETTERS_TALL = 64, LETTERS_WIDE = 32, LINES_TALL = 32, LINES_WIDE = 64;  // tiles
constexpr int LAYER_TALL = 16, LAYER_WIDE = 64;  // a tile of channels_text (coarse.cu)
constexpr int TEXT_LEVELS = 3;

struct Scale {
    const float* image;  // (B, 3, h, w)
    float* strokes;      // (B, h, w)
    float* clean;        // (B, h, w): strokes without ruled lines
    float* letters;      // (B, h, w)
    float* found;        // (B, h, w): may overwrite the strokes, unless they are kept
    int height, width;
};

struct Text {
    Scale scale[TEXT_LEVELS];
    int batch, scales;
    Listed strokes, letters, lines;  // tiles to update
};

// Reach of a change in texels: on strokes, then through strokes on letters (vertically, the longer way), then on lines.
constexpr int STROKES_REACH = CONTRAST / 2, LETTERS_REACH = STROKES_REACH + 2 * (RULED / 2) + 2 * (LETTER / 2);
constexpr int LINES_REACH = LETTERS_REACH + DASH_ROWS / 2 + (DASH_ROWS + MARGIN) / 2;
static_assert(LINES_REACH >= STROKES_REACH + 2 + DASH_COLUMNS / 2 + (DASH_COLUMNS + MARGIN) / 2 + 2 * (GAP / 2), "along lines");

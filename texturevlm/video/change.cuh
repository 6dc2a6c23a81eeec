// Shared by the kernels that compare frames (change.cu, change_decide.cu). texturevlm/video/change.py is the specification.
#pragma once

// Measurements per tile, each (rows, columns).
enum Number { COARSE, NOW, FINE, SQUARE, MOVED, BEFORE = MOVED + 3, NUMBERS = BEFORE + 3 };

// What differs from frame to frame. It is read from memory, so that one captured graph serves all frames.
struct Turn {
    const float* floats;            // (3, H, W), or null
    const unsigned char* bytes;     // the same as bytes, or null
    long long channel;              // stride between channels, in elements; 0 for grey
    const float *sensor, *flicker;  // (2,), (2, rows, columns): the noise so far
    const float* last;              // (3, h, w): differences of the blocks of the last frame
    float *sensor_next, *flicker_next, *blocks;  // the same after this one
    float rate;                     // how fast the estimate of the sensor's noise follows
    int take;                       // whether marked tiles will be copied
    int aligned;                    // whether four pixels of a row can be read at once
};

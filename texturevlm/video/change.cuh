// What the kernels that compare frames share (change.cu, change_decide.cu); texturevlm/video/change.py is the specification.
#pragma once

// What is known of a tile, each (rows, columns).
enum Number { COARSE, NOW, FINE, SQUARE, MOVED, BEFORE = MOVED + 3, NUMBERS = BEFORE + 3 };

// What differs from frame to frame. It lies in memory, so that one captured graph serves them all.
struct Turn {
    const float* floats;            // (3, H, W), or null
    const unsigned char* bytes;     // the same as 0 … 255
    long long channel;              // from one channel to the next, in elements; 0 for grey
    const float *sensor, *flicker;  // (2,), (2, rows, columns): the noise so far
    const float* last;              // (3, h, w): how the blocks of the last frame differed
    float *sensor_next, *flicker_next, *blocks;  // the same after this one
    float rate;                     // how fast the sensor's noise is followed
    int take;                       // whether marked tiles will be taken over
    int aligned;                    // whether four pixels of a row can be read at once
};

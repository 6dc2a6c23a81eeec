// Lists the tiles that each kernel for text has to update if only part of the image changed. A block without a tile on its list
// ends at once.
#include "text.cuh"

constexpr int LISTING_THREADS = 1024;

struct TextTiles {
    Text text;
    int* list[4];  // for strokes, letters, lines and channels_text: the count of tiles, then their numbers
    Marks marks;
    int reach;     // of a change on the layer, in pixels
};

// One list per block, one row of tiles per warp.
extern "C" __global__ void __launch_bounds__(LISTING_THREADS) text_tiles(const __grid_constant__ TextTiles job) {
    constexpr int ROWS[] = {STROKES_TILE, LETTERS_TALL, LINES_TALL, LAYER_TALL};
    constexpr int COLUMNS[] = {STROKES_TILE, LETTERS_WIDE, LINES_WIDE, LAYER_WIDE};
    constexpr int REACH[] = {STROKES_REACH, LETTERS_REACH, LINES_REACH};
    __shared__ int listed;
    if (threadIdx.x == 0) listed = 0;
    __syncthreads();
    const int which = blockIdx.x, rows = ROWS[which], columns = COLUMNS[which], reach = which < 3 ? REACH[which] : job.reach;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    int first = 0;  // number of the level's first tile
    for (int level = 0; level < (which < 3 ? job.text.scales : 1); ++level) {
        const Scale& scale = job.text.scale[level];
        const int across = (scale.width + columns - 1) / columns, down = (scale.height + rows - 1) / rows;
        for (int row = warp; row < down; row += LISTING_THREADS / 32)
            for (int start = 0; start < across; start += 32) {
                const int y = row * rows, x = (start + lane) * columns;
                const bool wanted = job.marks.near_on_level(level, y, x, y + rows, x + columns, reach) && start + lane < across;
                const unsigned those = __ballot_sync(~0u, wanted);
                int at = lane == 0 && those ? atomicAdd(&listed, __popc(those)) : 0;
                at = __shfl_sync(~0u, at, 0) + __popc(those & (1u << lane) - 1);
                if (wanted) job.list[which][1 + at] = first + row * across + start + lane;
            }
        first += across * down;
    }
    __syncthreads();
    if (threadIdx.x == 0) job.list[which][0] = listed;
}

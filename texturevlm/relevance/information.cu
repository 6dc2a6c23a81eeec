// Relevance of each cell from the image alone (texturevlm/relevance/information.py and salience.py):
//   information_losses: colour's levels up to that of the cells → the variance that each level has lost, and histograms
//                       of deviation and brightness
//   information_maps:   these, the coarser levels, text and saliency on the cells → legible_scale, ink (whether a cell is
//                       not blank), whether the image is a photograph, and the worth of a cell
// Constants are those of texturevlm/relevance.
#include "layers.cuh"
#include "warp.cuh"

constexpr int COARSEST = 6, WINDOW = 5, MOST_CELL = 5;
constexpr int BINS = 256, STEPS = 32, COUNTS = BINS + STEPS;  // bins of deviation, steps of brightness
constexpr float LOST = 0.6f, BLANK_LOW = 0.012f, BLANK_HIGH = 0.03f, NOISE_TIMES = 3.f;
constexpr float STANDING_OUT = 0.15f, ANYTHING = 0.02f, WRITTEN = 0.2f, CENTRE = 0.45f;
constexpr int GROUND = 3;
constexpr float QUIET = BLANK_LOW / NOISE_TIMES, QUIET_STEP = (BLANK_HIGH / NOISE_TIMES - QUIET) / (BINS - 1);
constexpr int SIDE = 16;                                      // cells per block and axis
constexpr int TAPS = (2 << MOST_CELL) * 2 - MOST_CELL - 4;    // weights of all levels below the cells, see taps_start

struct Losses {
    const float* level[MOST_CELL + 1];  // (B, 3, H, W), from the finest to that of the cells
    float* squares;                     // (B, h, w): the square of a cell's brightness
    float* gone;                        // (B, cell, h, w): variance lost by level 1, 2 … cell
    int* histogram;                     // (B, COUNTS), zero at the start
    int height[MOST_CELL + 1], width[MOST_CELL + 1];
    int batch, cell;
};

// Texels of a level `depth` below the cells: a cell reads up to 2^(depth + 1) − 1 along an axis.
__device__ __forceinline__ int taps_start(int depth) { return (2 << depth) - depth - 3; }

// The first texel of a cell on each finer level along one axis, and the share of the cell that each texel covers.
struct Axis {
    float share[SIDE][TAPS];
    int first[SIDE][MOST_CELL], count[MOST_CELL];
};

// Halving by halving (see ops/mip.py): from the share of a texel to the shares of the two or three that it is made of.
__device__ void fill_axis(Axis& axis, int step, int place, int level, int cell, const int* extents) {
    float* share = axis.share[step] + taps_start(cell - level);
    int first = place, count = 1;
    share[0] = 1.f;
    for (int below = cell - 1; below >= level; --below) {
        const int extent = extents[below], half = extent / 2;
        if (extent == 1) continue;
        const bool odd = extent % 2;
        if (odd) share[2 * count] = 0.f;
        for (int i = count - 1; i >= 0; --i) {
            const float whole = share[i], at = first + i;
            share[2 * i + 1] = whole * (odd ? static_cast<float>(half) / extent : 0.5f);
            if (odd) share[2 * i + 2] += whole * ((at + 1.f) / extent);
            share[2 * i] = whole * (odd ? (half - at) / extent : 0.5f);
        }
        first *= 2, count = 2 * count + odd;
    }
    axis.first[step][level] = first, axis.count[level] = count;
}

struct Cells {
    int y, x, image;  // of a block's first cell
};

__device__ __forceinline__ Cells cells_of(int rows, int columns) {
    const int across = (columns + SIDE - 1) / SIDE, down = (rows + SIDE - 1) / SIDE;
    const int strip = blockIdx.x / across, image = strip / down;
    return {(strip - image * down) * SIDE, static_cast<int>(blockIdx.x - strip * across) * SIDE, image};
}

extern "C" __global__ void __launch_bounds__(256) information_losses(const __grid_constant__ Losses job) {
    __shared__ Axis down, across;
    __shared__ int bins[COUNTS];
    const int cell = job.cell, rows = job.height[cell], columns = job.width[cell];
    const Cells block = cells_of(rows, columns);
    for (int i = threadIdx.x; i < COUNTS; i += 256) bins[i] = 0;
    for (int i = threadIdx.x; i < 2 * SIDE * cell; i += 256) {
        const int level = i / (2 * SIDE), step = i % SIDE;
        if (i / SIDE % 2) fill_axis(across, step, min(block.x + step, columns - 1), level, cell, job.width);
        else fill_axis(down, step, min(block.y + step, rows - 1), level, cell, job.height);
    }
    __syncthreads();
    const int row = threadIdx.x / SIDE, column = threadIdx.x % SIDE, y = block.y + row, x = block.x + column;
    if (y < rows && x < columns) {
        const long long area = static_cast<long long>(rows) * columns, place = static_cast<long long>(y) * columns + x;
        const float grey = luma(job.level[cell] + block.image * 3 * area, area, static_cast<int>(place));
        float finest = 0.f, gone = 0.f;
        for (int level = 0; level < cell; ++level) {
            const int start = taps_start(cell - level), width = job.width[level];
            const long long plane = static_cast<long long>(job.height[level]) * width;
            const float* colour = job.level[level] + block.image * 3 * plane;
            const float *tall = down.share[row] + start, *wide = across.share[column] + start;
            const int first = down.first[row][level] * width + across.first[column][level];
            float square = 0.f;
            for (int dy = 0; dy < down.count[level]; ++dy) {
                float line = 0.f;
#pragma unroll 4
                for (int dx = 0; dx < across.count[level]; ++dx) {
                    const float away = luma(colour, plane, first + dy * width + dx) - grey;  // small differences, so that squares do not cancel
                    line += wide[dx] * (away * away);
                }
                square += tall[dy] * line;
            }
            if (level == 0) finest = square;
            else gone = fmaxf(gone, finest - square), job.gone[(block.image * cell + level - 1) * area + place] = gone;
        }
        gone = fmaxf(gone, finest);
        job.gone[(block.image * cell + cell - 1) * area + place] = gone;
        job.squares[block.image * area + place] = grey * grey;
        const float bin = (sqrtf(gone) - QUIET) / QUIET_STEP;
        atomicAdd(&bins[bin > 0.f ? min(static_cast<int>(fminf(bin, BINS)), BINS - 1) : 0], 1);
        atomicAdd(&bins[BINS + min(max(static_cast<int>(grey * STEPS), 0), STEPS - 1)], 1);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < COUNTS; i += 256)
        if (bins[i]) atomicAdd(&job.histogram[block.image * COUNTS + i], bins[i]);
}

struct Coarser {
    const float* squares;  // (B, h, w): means of the cells' squares
    const float* colour;   // (B, 3, h, w)
    int height, width;
};

struct Maps {
    const float* gone;  // from information_losses
    const int* histogram;
    const float* found;  // (B, 2, h, w): text and saliency
    float *legible_scale, *worth;  // (B, h, w)
    unsigned char *ink, *photograph;  // (B, h, w) and (B,)
    Coarser coarser[COARSEST - 1];  // levels cell + 1 … COARSEST
    int batch, cell, rows, columns;
    int quiet_rank;   // rank, from the quietest, of the cell that shows the noise of the image
    float page;       // so many cells of the ground's brightness make a page
};

constexpr int AROUND = WINDOW / 2, SEEN = SIDE + 2 * AROUND;

// The threshold below which a cell is blank, from the deviation of the cell of that rank. Called by the whole block.
__device__ __forceinline__ float blank_of(const int* histogram, int rank) {
    __shared__ int totals[8], found;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, mine = __ldg(histogram + threadIdx.x);
    int sum = sum_to_lane(mine);
    if (lane == 31) totals[warp] = sum;
    __syncthreads();
    for (int i = 0; i < warp; ++i) sum += totals[i];
    if (sum > rank && sum - mine <= rank) found = threadIdx.x;
    __syncthreads();
    return fminf(fmaxf((QUIET + found * QUIET_STEP) * NOISE_TIMES, BLANK_LOW), BLANK_HIGH);
}

// Whether no GROUND steps of brightness hold a page's share of the cells. One warp computes it for all threads.
__device__ __forceinline__ bool is_photograph(const int* brightness, float page) {
    __shared__ int ground;
    if (threadIdx.x < 32) {
        int mine = __ldg(brightness + threadIdx.x), sum = 0;
        for (int i = 0; i < GROUND; ++i) {
            int most = mine;
#pragma unroll
            for (int step = 16; step > 0; step /= 2) most = max(most, __shfl_xor_sync(~0u, most, step));
            const unsigned holders = __ballot_sync(~0u, mine == most);
            if (threadIdx.x + 1 == __ffs(holders)) mine = -1;  // the first of equal ones
            sum += most;
        }
        if (threadIdx.x == 0) ground = sum;
    }
    __syncthreads();
    return ground < page;
}

// The texel of a coarser level that holds a cell, as torch's nearest interpolation finds it.
__device__ __forceinline__ int holding(int cell, int cells, int texels) {
    return min(static_cast<int>(floorf(cell * (static_cast<float>(texels) / cells))), texels - 1);
}

extern "C" __global__ void __launch_bounds__(256) information_maps(const __grid_constant__ Maps job) {
    __shared__ float gone[COARSEST][SEEN * SEEN];  // by level 1, 2 … COARSEST
    const int cell = job.cell, rows = job.rows, columns = job.columns;
    const long long area = static_cast<long long>(rows) * columns;
    const Cells block = cells_of(rows, columns);
    for (int i = threadIdx.x; i < SEEN * SEEN; i += 256) {
        const int y = inside(block.y + i / SEEN - AROUND, rows), x = inside(block.x + i % SEEN - AROUND, columns);
        const long long place = static_cast<long long>(y) * columns + x;
        float lost = 0.f;
        for (int level = 0; level < cell; ++level)
            gone[level][i] = lost = __ldg(job.gone + (block.image * cell + level) * area + place);
        const float within_cell = lost;
        for (int level = cell; level < COARSEST; ++level) {
            const Coarser& from = job.coarser[level - cell];
            const long long plane = static_cast<long long>(from.height) * from.width;
            const int at = holding(y, rows, from.height) * from.width + holding(x, columns, from.width);
            const float grey = luma(from.colour + block.image * 3 * plane, plane, at);
            lost = fmaxf(lost, within_cell + (__ldg(from.squares + block.image * plane + at) - grey * grey));
            gone[level][i] = lost;
        }
    }
    const int* histogram = job.histogram + block.image * COUNTS;
    const float blank = blank_of(histogram, job.quiet_rank);  // synchronises the block
    const bool photograph = is_photograph(histogram + BINS, job.page);
    if (threadIdx.x == 0 && block.y == 0 && block.x == 0) job.photograph[block.image] = photograph;
    const int row = threadIdx.x / SIDE, column = threadIdx.x % SIDE, y = block.y + row, x = block.x + column;
    if (y >= rows || x >= columns) return;
    const long long place = block.image * area + static_cast<long long>(y) * columns + x;
    bool ink = false;
    for (int i = 0; i < 9; ++i)
        ink |= sqrtf(gone[cell - 1][(row + AROUND - 1 + i / 3) * SEEN + column + AROUND - 1 + i % 3]) > blank;
    float around[COARSEST + 1];
    around[0] = 0.f;
#pragma unroll
    for (int level = 0; level < COARSEST; ++level) {
        float total = 0.f;
#pragma unroll
        for (int i = 0; i < WINDOW * WINDOW; ++i) total += gone[level][(row + i / WINDOW) * SEEN + column + i % WINDOW];
        around[level + 1] = total * (1.f / (WINDOW * WINDOW));
    }
    const float all = fmaxf(around[COARSEST], 1e-12f);
    float low = 0.f, high = around[1] / all;
    int below = 1;  // the first level that has lost as much
#pragma unroll
    for (int level = 2; level <= COARSEST; ++level)
        if (around[level - 1] / all < LOST) below = level, low = around[level - 1] / all, high = around[level] / all;
    const float legible_scale = exp2f(below - 1 + fminf(fmaxf((LOST - low) / fmaxf(high - low, 1e-6f), 0.f), 1.f));
    job.legible_scale[place] = legible_scale, job.ink[place] = ink;
    const float* found = job.found + 2 * block.image * area + (place - block.image * area);
    const float text = __ldg(found), standing = __ldg(found + area);
    if (photograph) {
        const float away_y = (y + 0.5f) / rows - 0.5f, away_x = (x + 0.5f) / columns - 0.5f;
        const float prior = expf(-(away_y * away_y + away_x * away_x) / (2 * CENTRE * CENTRE));
        job.worth[place] = standing * prior + WRITTEN * text;
    } else {
        const float fine = fmaxf(legible_scale, 1.f);
        job.worth[place] = ink ? (text + STANDING_OUT * standing + ANYTHING) / (fine * fine) : 0.f;
    }
}

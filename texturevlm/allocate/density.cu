// Cells of equal density that tile an image (texturevlm/allocate/density.py).
//   density_scale: finds the factor at which the capped density sums to the budget
//   density_rows:  tokens per cell, summed along each row
//   density_table: the row sums, summed down each column: a summed-area table
//   density_tiles: cuts the image in two repeatedly, by a plan that depends on the budget alone; writes footprints
#include "scalar.cuh"
#include "warp.cuh"

constexpr int MOST_TOKENS = 1024, MOST_ROUNDS = 16, STEPS = 60, ROWS_PER_BLOCK = 8;

struct Density {
    const float* mass;            // (B, h, w), sums to 1 per image
    const unsigned char* wanted;  // (B,), the images to tile; null: all
    const int* plan;              // (K − 1, 3): the cell to cut, the tokens of its first part and of its second part
    double* scale;                // (B, 2): the factor, and the sum of the density times the factor
    double* table;                // (B, h + 1, w + 1)
    float *centre, *ddx, *ddy;    // (B, K, 2)
    float* score;                 // (B, K)
    unsigned char* valid;         // (B, K)
    double even, cap, area;       // least density, in units of the mean; most tokens per pixel; pixels per cell
    int batch, rows, columns, height, width, patch, budget, rounds;
    int start[MOST_ROUNDS];       // the first new cell of each round
};

__device__ __forceinline__ bool not_wanted(const Density& job, int image) { return job.wanted && !job.wanted[image]; }

__device__ __forceinline__ double wanted_at(const Density& job, const float* mass, int cell) {
    return static_cast<double>(mass[cell]) * (static_cast<double>(job.rows) * job.columns) + job.even;
}

// The sum over a block, returned to every thread.
__device__ double block_sum(double value) {
    __shared__ double sums[8];
#pragma unroll
    for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(~0u, value, step);
    __syncthreads();
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = value;
    __syncthreads();
    double total = 0;
    for (int i = 0; i < 8; ++i) total += sums[i];
    return total;
}

// The sum of min(scale · wanted, cap) is concave and piecewise linear in the scale: Newton's method from below is exact.
extern "C" __global__ void __launch_bounds__(256) density_scale(const __grid_constant__ Density job) {
    let_next_start();
    const int image = blockIdx.x, cells = job.rows * job.columns;
    if (not_wanted(job, image)) return;
    const float* mass = job.mass + static_cast<long long>(image) * cells;
    double scale = 0, before = -1, total = 0;
    for (int step = 0; step < STEPS; ++step) {
        double full = 0, rest = 0;
#pragma unroll 8
        for (int cell = threadIdx.x; cell < cells; cell += 256) {
            const double wanted = wanted_at(job, mass, cell);
            if (scale * wanted >= job.cap) full += 1;
            else rest += wanted;
        }
        full = block_sum(full), rest = block_sum(rest);
        total = (full * job.cap + scale * rest) * job.area;
        if (full == before || rest == 0) break;
        before = full;
        scale = (job.budget / job.area - full * job.cap) / rest;
    }
    if (threadIdx.x == 0) job.scale[2 * image] = scale, job.scale[2 * image + 1] = total;
}

// One row per warp.
extern "C" __global__ void __launch_bounds__(256) density_rows(const __grid_constant__ Density job) {
    let_next_start();
    wait_for_previous();
    const int lane = threadIdx.x % 32, pitch = job.columns + 1;
    const long long line = static_cast<long long>(blockIdx.x) * ROWS_PER_BLOCK + threadIdx.x / 32, image = line / (job.rows + 1);
    if (image >= job.batch || not_wanted(job, image)) return;
    const int row = line - image * (job.rows + 1);
    double* sums = job.table + line * pitch;
    if (row == 0) {  // nothing lies above the first row
        for (int x = lane; x < pitch; x += 32) sums[x] = 0;
        return;
    }
    const float* mass = job.mass + (image * job.rows + row - 1) * job.columns;
    const double scale = job.scale[2 * image], share = job.budget / job.scale[2 * image + 1];
    double before = 0;
    if (lane == 0) sums[0] = 0;
    for (int start = 0; start < job.columns; start += 32) {
        const int x = start + lane;
        const double own = x < job.columns ? fmin(scale * wanted_at(job, mass, x), job.cap) * job.area * share : 0;
        const double value = before + sum_to_lane(own);
        if (x < job.columns) sums[x + 1] = value;
        before = __shfl_sync(~0u, value, 31);
    }
}

// One column per thread.
extern "C" __global__ void __launch_bounds__(256) density_table(const __grid_constant__ Density job) {
    let_next_start();
    wait_for_previous();
    const int image = blockIdx.y, x = blockIdx.x * 256 + threadIdx.x, pitch = job.columns + 1;
    if (x >= pitch || not_wanted(job, image)) return;
    double* sums = job.table + static_cast<long long>(image) * (job.rows + 1) * pitch + x;
    double total = 0;
#pragma unroll 8
    for (int row = 0; row <= job.rows; ++row) total += sums[row * pitch], sums[row * pitch] = total;
}

// The tokens before line `at` of one axis, between `low` and `high` of the other; they are uniform inside a cell.
struct Strip {
    const double* table;
    int along, across, cells;  // table strides along and across the axis; cells across
    double low, high;

    __device__ double level(double y, int at) const {
        const int first = min(static_cast<int>(y), cells - 1);
        const double above = table[first * across + at * along], below = table[(first + 1) * across + at * along];
        return above + (below - above) * (y - first);
    }
    __device__ double line(int at) const { return level(high, at) - level(low, at); }
};

// The position between x0 and x1 that leaves `share` of the tokens before it.
__device__ double cut(const Strip& strip, double x0, double x1, int cells, double share) {
    int low = min(static_cast<int>(x0), cells - 1), high = min(static_cast<int>(x1), cells - 1) + 1;
    const double first = strip.line(low), last = strip.line(high - 1);
    const double left = first + (strip.line(low + 1) - first) * (x0 - low);
    const double right = last + (strip.line(high) - last) * (x1 - (high - 1));
    const double target = left + (right - left) * share;
    while (high - low > 1) {  // invariant: line(low) ≤ target
        const int middle = (low + high) / 2;
        if (strip.line(middle) > target) high = middle;
        else low = middle;
    }
    const double before = strip.line(low), inside = (target - before) / fmax(strip.line(low + 1) - before, 1e-300);
    return fmin(fmax(low + fmin(fmax(inside, 0.0), 1.0), x0), x1);
}

// One axis of a footprint: no finer than the pixels, inside the image.
__device__ __forceinline__ void footprint(double low, double high, int extent, int patch, float* centre, float* step) {
    const double side = fmin(fmax(high - low, static_cast<double>(patch)), static_cast<double>(extent));
    const double start = fmin(fmax((low + high - side) * 0.5, 0.0), extent - side);
    *centre = static_cast<float>(start + side * 0.5), *step = static_cast<float>(side / patch);
}

// One image per block.
extern "C" __global__ void __launch_bounds__(256) density_tiles(const __grid_constant__ Density job) {
    __shared__ double x0[MOST_TOKENS], y0[MOST_TOKENS], x1[MOST_TOKENS], y1[MOST_TOKENS];
    wait_for_previous();
    const int image = blockIdx.x, pitch = job.columns + 1;
    const bool idle = not_wanted(job, image);
    const double* table = job.table + static_cast<long long>(image) * (job.rows + 1) * pitch;
    const double pixel_x = static_cast<double>(job.width) / job.columns;
    const double pixel_y = static_cast<double>(job.height) / job.rows;
    if (threadIdx.x == 0) x0[0] = y0[0] = 0, x1[0] = job.columns, y1[0] = job.rows;
    for (int round = 0; round < job.rounds && !idle; ++round) {
        __syncthreads();
        const int end = round + 1 < job.rounds ? job.start[round + 1] : job.budget;
        for (int fresh = job.start[round] + threadIdx.x; fresh < end; fresh += 256) {
            const int* todo = job.plan + 3 * (fresh - 1);
            const int cell = todo[0];
            const double share = static_cast<double>(todo[1]) / (todo[1] + todo[2]);
            const double left = x0[cell], top = y0[cell], right = x1[cell], bottom = y1[cell];
            x0[fresh] = left, y0[fresh] = top, x1[fresh] = right, y1[fresh] = bottom;
            if ((right - left) * pixel_x >= (bottom - top) * pixel_y)
                x1[cell] = x0[fresh] = cut({table, 1, pitch, job.rows, top, bottom}, left, right, job.columns, share);
            else
                y1[cell] = y0[fresh] = cut({table, pitch, 1, job.columns, left, right}, top, bottom, job.rows, share);
        }
    }
    __syncthreads();
    for (int slot = threadIdx.x; slot < job.budget; slot += 256) {
        const long long to = static_cast<long long>(image) * job.budget + slot;
        float x = job.patch * 0.5f, y = x, across = 1.f, down = 1.f, score = 0.f;
        if (!idle) {
            footprint(x0[slot] * pixel_x, x1[slot] * pixel_x, job.width, job.patch, &x, &across);
            footprint(y0[slot] * pixel_y, y1[slot] * pixel_y, job.height, job.patch, &y, &down);
            const int column = min(static_cast<int>(x / static_cast<float>(pixel_x)), job.columns - 1);
            const int row = min(static_cast<int>(y / static_cast<float>(pixel_y)), job.rows - 1);
            score = job.mass[(static_cast<long long>(image) * job.rows + row) * job.columns + column];
        }
        job.centre[2 * to] = x, job.centre[2 * to + 1] = y;
        job.ddx[2 * to] = across, job.ddx[2 * to + 1] = 0.f;
        job.ddy[2 * to] = 0.f, job.ddy[2 * to + 1] = down;
        job.score[to] = score, job.valid[to] = !idle;
    }
}

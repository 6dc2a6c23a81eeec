// Selection (texturevlm/ops/select.py): tiles of an image are cut repeatedly where the gain is greatest.
//   select_sums:   legible mass of the cells at each scale, and ink, summed along each row
//   select_tokens: one plan for one image per block: tiles in shared memory, ranked by counting better ones
//   select_best:   the tokens of the plan with the most legible mass, as footprints
// Sums are of integers, so their order does not matter.
#include "scalar.cuh"
#include "warp.cuh"

constexpr int MOST_TOKENS = 1024, MOST_PLANS = 32, MOST_LEVELS = 160, MOST_SCALES = 64;
constexpr int CUTS = 8;
constexpr float UNIT = 1073741824.f;
constexpr int SLOTS = MOST_TOKENS / 256;  // slots per thread

struct Level {
    unsigned char across, down;
    unsigned short survivors;
    unsigned char seen, finest, last, unused;  // tables
};

struct Plan {
    unsigned short rows, columns, stages, level;
};

struct Select {
    const float* maps;          // (B, M, h, w)
    const float* legible_scale; // (B, h, w)
    const unsigned char* ink;   // (B, h, w)
    int* tables;                // (B, T, h, w + 1), T = M · scales + 1
    int* tiles;                 // (B, plans, K, 5): column, row, columns, rows, legible mass
    int* totals;                // (B, plans, 2): legible mass, and number of tiles
    float *centre, *ddx, *ddy;  // (B, K, 2)
    float* score;               // (B, K)
    unsigned char* valid;       // (B, K)
    int batch, maps_count, cell_rows, cell_columns, height, width, budget, patch, plans, scales;
    Plan plan[MOST_PLANS];
    Level level[MOST_LEVELS];
    float scale[MOST_SCALES];
};

__device__ __forceinline__ int tables_of(const Select& job) { return job.maps_count * job.scales + 1; }

// One row of a table per warp.
extern "C" __global__ void __launch_bounds__(256) select_sums(const __grid_constant__ Select job) {
    let_next_start();
    const int lane = threadIdx.x % 32, count = tables_of(job), rows = job.cell_rows, columns = job.cell_columns;
    const long long line = blockIdx.x * 8LL + threadIdx.x / 32;
    if (line >= static_cast<long long>(job.batch) * count * rows) return;
    const int row = line % rows, table = line / rows % count;
    const long long image = line / rows / count;
    const int map = min(table / job.scales, job.maps_count - 1);
    const float scale = job.scale[table % job.scales];
    const float* mass = job.maps + ((image * job.maps_count + map) * rows + row) * columns;
    const float* legible_scale = job.legible_scale + (image * rows + row) * columns;
    const unsigned char* ink = job.ink + (image * rows + row) * columns;
    int* sums = job.tables + line * (columns + 1);
    if (lane == 0) sums[0] = 0;
    int before = 0;
    for (int start = 0; start < columns; start += 32) {
        const int x = start + lane;
        int value = 0;
        if (x < columns && __ldg(ink + x)) {
            const float ratio = scale / __ldg(legible_scale + x), square = ratio * ratio;
            const float lost = square * square * ratio * sqrtf(ratio);  // to the power of STEEPNESS (ops/legibility.py)
            value = table == count - 1 ? 1 : __float2int_rn(__ldg(mass + x) * (1.f / (1.f + lost)) * UNIT);
        }
        value = before + sum_to_lane(value);
        if (x < columns) sums[x + 1] = value;
        before = __shfl_sync(~0u, value, 31);
    }
}

struct Tiles {
    int column[MOST_TOKENS], row[MOST_TOKENS], columns[MOST_TOKENS], rows[MOST_TOKENS];
    int gain[MOST_TOKENS];  // on the finest level; 0: nothing to cut, −1: not known yet
    int last[MOST_TOKENS];  // legible mass by the last map
    unsigned char step[MOST_TOKENS];
    int candidates, value;
};

// The first cell whose centre is not before the edge tile / tiles.
__device__ __forceinline__ int first_cell(int tile, int tiles, int cells) {
    return static_cast<int>((2LL * tile * cells + tiles - 1) / (2LL * tiles));
}

// Whether one of `count` tiles along an axis has more pixels than samples.
__device__ __forceinline__ bool coarse(const Select& job, int extent, int count) {
    return extent * 1000LL > job.patch * 1001LL * count;
}

// Computes the gains that are not known yet. Eight lanes per tile, each takes every eighth row of cells.
__device__ void measure(const Select& job, const Plan& plan, const int* tables, Tiles& tiles, int count) {
    const int pitch = job.cell_columns + 1, table = job.cell_rows * pitch, inks = (tables_of(job) - 1) * table;
    for (int start = 0; start < count; start += 32) {
        const int slot = start + threadIdx.x / 8;
        const bool wanted = slot < count && tiles.gain[slot] < 0;
        if (!__any_sync(~0u, wanted)) continue;
        int gain = 0, last = 0;
        if (wanted) {
            const Level& level = job.level[plan.level + tiles.step[slot]];
            const int column = tiles.column[slot], columns = tiles.columns[slot];
            const int row = tiles.row[slot], rows = tiles.rows[slot];
            const int left = first_cell(column, columns, job.cell_columns);
            const int right = first_cell(column + 1, columns, job.cell_columns);
            const int end = first_cell(row + 1, rows, job.cell_rows);
            const bool open = coarse(job, job.width, columns) || coarse(job, job.height, rows);
            for (int y = first_cell(row, rows, job.cell_rows) + threadIdx.x % 8; y < end; y += 8) {
                const int *from = tables + y * pitch + left, *to = tables + y * pitch + right;
                last += to[level.last * table] - from[level.last * table];
                if (!open) continue;
                gain += to[level.finest * table] - from[level.finest * table];
                gain += from[level.seen * table] - to[level.seen * table];
                gain += to[inks] - from[inks];
            }
        }
#pragma unroll
        for (int step = 4; step > 0; step /= 2) {
            gain += __shfl_xor_sync(~0u, gain, step);
            last += __shfl_xor_sync(~0u, last, step);
        }
        __syncwarp();  // all eight lanes have read the gain that one of them now replaces
        if (wanted && threadIdx.x % 8 == 0) tiles.gain[slot] = gain, tiles.last[slot] = last;
    }
    __syncthreads();
}

// Cuts the best tiles: those of one step into across × down; or, if step is −1, any tile in two. Returns the new number of
// tiles.
__device__ int cut(const Select& job, Tiles& tiles, int count, int step, const Level& level) {
    const bool in_two = step < 0;
    const int more = in_two ? 1 : level.across * level.down - 1;
    if (threadIdx.x == 0) tiles.candidates = 0;
    __syncthreads();
    int rank[SLOTS];
#pragma unroll
    for (int k = 0; k < SLOTS; ++k) {
        const int slot = threadIdx.x + k * 256;
        rank[k] = MOST_TOKENS;
        if (slot >= count || tiles.gain[slot] <= 0 || (!in_two && tiles.step[slot] != step)) continue;
        const int mine = tiles.gain[slot];
        int better = 0;
        for (int other = 0; other < count; ++other) {
            const int theirs = in_two || tiles.step[other] == step ? tiles.gain[other] : 0;
            better += theirs > mine || (theirs == mine && other < slot);
        }
        rank[k] = better;
        atomicAdd(&tiles.candidates, 1);
    }
    __syncthreads();
    const int left = job.budget - count;
    const int chosen = min(tiles.candidates, in_two ? left : min(static_cast<int>(level.survivors), left / more));
#pragma unroll
    for (int k = 0; k < SLOTS; ++k) {
        if (rank[k] >= chosen) continue;
        const int slot = threadIdx.x + k * 256;
        const int column = tiles.column[slot], columns = tiles.columns[slot];
        const int row = tiles.row[slot], rows = tiles.rows[slot];
        int across = level.across, down = level.down;
        if (in_two) {
            const bool wide = 3LL * job.width * rows >= 2LL * job.height * columns || !coarse(job, job.height, rows);
            across = wide && coarse(job, job.width, columns) ? 2 : 1;
            down = 3 - across;
        }
        const unsigned char next = tiles.step[slot] + (in_two ? 0 : 1);
        for (int child = 0; child <= more; ++child) {
            const int at = child == 0 ? slot : count + rank[k] * more + child - 1;
            tiles.column[at] = column * across + child % across, tiles.columns[at] = columns * across;
            tiles.row[at] = row * down + child / across, tiles.rows[at] = rows * down;
            tiles.step[at] = next, tiles.gain[at] = -1;
        }
    }
    __syncthreads();
    return count + chosen * more;
}

extern "C" __global__ void __launch_bounds__(256) select_tokens(const __grid_constant__ Select job) {
    __shared__ Tiles tiles;
    let_next_start();
    const Plan& plan = job.plan[blockIdx.x];
    const long long image = blockIdx.y, place = image * job.plans + blockIdx.x;
    const int* tables = job.tables + image * tables_of(job) * job.cell_rows * (job.cell_columns + 1);
    int count = plan.rows * plan.columns;
    for (int slot = threadIdx.x; slot < count; slot += 256) {
        tiles.column[slot] = slot % plan.columns, tiles.columns[slot] = plan.columns;
        tiles.row[slot] = slot / plan.columns, tiles.rows[slot] = plan.rows;
        tiles.step[slot] = 0, tiles.gain[slot] = -1;
    }
    if (threadIdx.x == 0) tiles.value = 0;
    __syncthreads();
    wait_for_previous();
    measure(job, plan, tables, tiles, count);
    for (int step = 0; step < plan.stages; ++step) {
        count = cut(job, tiles, count, step, job.level[plan.level + step]);
        measure(job, plan, tables, tiles, count);
    }
    for (int slot = threadIdx.x; slot < count; slot += 256) atomicAdd(&tiles.value, tiles.last[slot]);
    __syncthreads();
    if (threadIdx.x == 0) job.totals[2 * place] = tiles.value;
    for (int round = 0; round < CUTS && count < job.budget; ++round) {
        const int before = count;
        count = cut(job, tiles, count, -1, job.level[plan.level]);
        if (count == before) break;
        measure(job, plan, tables, tiles, count);
    }
    if (threadIdx.x == 0) job.totals[2 * place + 1] = count;
    int* to = job.tiles + place * job.budget * 5;
    for (int slot = threadIdx.x; slot < count; slot += 256) {
        to[5 * slot] = tiles.column[slot], to[5 * slot + 1] = tiles.row[slot];
        to[5 * slot + 2] = tiles.columns[slot], to[5 * slot + 3] = tiles.rows[slot];
        to[5 * slot + 4] = tiles.last[slot];
    }
}

// One axis of a tile's footprint: no finer than the pixels, inside the image.
__device__ __forceinline__ void footprint(int place, int count, int extent, int patch, float* centre, float* step) {
    const double side = static_cast<double>(extent) / count, wide = fmax(side, static_cast<double>(min(patch, extent)));
    const double start = fmin(fmax(place * side - (wide - side) * 0.5, 0.0), extent - wide);
    *centre = static_cast<float>(start + wide * 0.5), *step = static_cast<float>(wide / patch);
}

extern "C" __global__ void __launch_bounds__(256) select_best(const __grid_constant__ Select job) {
    wait_for_previous();
    const long long image = blockIdx.x;
    const int* totals = job.totals + image * job.plans * 2;
    int best = 0;
    for (int plan = 1; plan < job.plans; ++plan)
        if (totals[2 * plan] > totals[2 * best]) best = plan;
    const int count = totals[2 * best + 1];
    const int* tiles = job.tiles + (image * job.plans + best) * job.budget * 5;
    for (int slot = threadIdx.x; slot < job.budget; slot += 256) {
        const long long to = image * job.budget + slot;
        float x = job.patch * 0.5f, y = x, across = 1.f, down = 1.f, score = 0.f;
        if (slot < count) {
            const int* tile = tiles + 5 * slot;
            footprint(tile[0], tile[2], job.width, job.patch, &x, &across);
            footprint(tile[1], tile[3], job.height, job.patch, &y, &down);
            score = tile[4] / UNIT;
        }
        job.centre[2 * to] = x, job.centre[2 * to + 1] = y;
        job.ddx[2 * to] = across, job.ddx[2 * to + 1] = 0.f;
        job.ddy[2 * to] = 0.f, job.ddy[2 * to + 1] = down;
        job.score[to] = score, job.valid[to] = slot < count;
    }
}

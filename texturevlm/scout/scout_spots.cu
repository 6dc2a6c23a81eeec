// The ranker's input (texturevlm/scout/ranker.py, `rank`) from the spotter's output and the question.
//   scout_inputs: hits of the question's words at spots, pooled with kinds, text and position, 2×2 spots per cell
//   scout_along:  in addition, the best hit to the left in the row, and above in the column
// One cell per warp. The eight cells of a block are compared with all words of the question together.
#include "scalar.cuh"

constexpr int EMBEDDING = 64, WORDS = 24, SURE = 8, VAGUE = 4, KINDS = 12, SEEN = 24;
constexpr int MAPS = SURE + VAGUE, CELLS = 8, SPOTS = 4 * CELLS, QUADS = EMBEDDING / 4, LINES = 8;
// The first channel of each part of the input.
constexpr int KINDS_AT = MAPS, ALONG_AT = KINDS_AT + KINDS, SEEN_AT = ALONG_AT + 2 * SURE, TEXT_AT = SEEN_AT + SEEN;
constexpr int PLACE_AT = TEXT_AT + 3, INPUTS = PLACE_AT + 4;
constexpr float USUAL_HEIGHT = 2.5f;
static_assert(WORDS % CELLS == 0 && EMBEDDING % 32 == 0 && SEEN <= 32, "a warp does as much as any other");
static_assert(SURE == 8 && ALONG_AT % 8 == 0, "a cell's sure hits are read at once");

// Maps of spots with any strides.
struct Map {
    const scalar* first;
    long long image;
    int row, column, channel, unused;

    __device__ float read(int at, int y, int x, int which) const {
        return widen(first[at * image + static_cast<long long>(y) * row + x * column + which * channel]);
    }
};

struct Inputs {
    Map words, text, height, kinds;
    const float* sought;  // (Q, WORDS, EMBEDDING)
    const float* worth;   // (Q, WORDS, MAPS)
    const float* steps;   // (2, 2): sharpness and doubt of sure hits, then of vague ones
    const float* seen;    // (EMBEDDING + 1, SEEN): a linear layer on the embedding, the last row is the bias
    const float* direct;  // (3 + KINDS): weights of text, of the best sure hit, of kinds; bias
    scalar* inputs;       // (B, rows / 2, columns / 2, pitch)
    float* shown;         // (B, rows, columns): probability of text
    float* scores;        // (B, rows, columns), the part of the score that needs no network
    int rows, columns, questions, pitch;
};

__device__ __forceinline__ float sigmoid(float value) { return 1.f / (1.f + expf(-value)); }
__device__ __forceinline__ float over_warp(float value) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(~0u, value, step);
    return value;
}
__device__ __forceinline__ float square(float value) { return value * value; }
__device__ __forceinline__ float best_of(const float* four) {
    return fmaxf(fmaxf(four[0], four[1]), fmaxf(four[2], four[3]));
}

extern "C" __global__ void __launch_bounds__(256) scout_inputs(const __grid_constant__ Inputs job) {
    __shared__ float4 spots[SPOTS][QUADS + 1], sought[WORDS][QUADS];
    __shared__ float worth[WORDS][MAPS], seen[EMBEDDING][SEEN], mean[CELLS][EMBEDDING], text[SPOTS];
    __shared__ float found[2][WORDS][SPOTS], hits[MAPS][SPOTS], kinds[KINDS][SPOTS];
    let_next_start();
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, image = blockIdx.y;
    const int question = job.questions == 1 ? 0 : image, across = job.columns / 2, cells = job.rows / 2 * across;
    const int wanted = blockIdx.x * CELLS + warp, cell = min(wanted, cells - 1), first = 4 * warp;
    const int row = 2 * (cell / across), column = 2 * (cell % across);
    const float* words = job.sought + question * (WORDS * EMBEDDING);
    for (int i = threadIdx.x; i < WORDS * EMBEDDING; i += 256) reinterpret_cast<float*>(sought)[i] = words[i];
    for (int i = threadIdx.x; i < WORDS * MAPS; i += 256) (&worth[0][0])[i] = job.worth[question * (WORDS * MAPS) + i];
    for (int i = threadIdx.x; i < EMBEDDING * SEEN; i += 256) (&seen[0][0])[i] = job.seen[i];

    // The four spots of this warp's cell; the first four lanes have one each.
    const int y = row + lane / 2 % 2, x = column + lane % 2;
    const float here = sigmoid(job.text.read(image, y, x, 0));
    const float high = (job.height.read(image, y, x, 0) - USUAL_HEIGHT) * here;
    if (lane < 4) text[first + lane] = here;
    float means[EMBEDDING / 32] = {};
#pragma unroll
    for (int spot = 0; spot < 4; ++spot) {
        float values[EMBEDDING / 32], squares = 0;
#pragma unroll
        for (int i = 0; i < EMBEDDING / 32; ++i) {
            values[i] = job.words.read(image, row + spot / 2, column + spot % 2, lane + 32 * i);
            squares += values[i] * values[i];
        }
        const float inverse = 1.f / fmaxf(sqrtf(over_warp(squares)), 1e-12f);
        const float share = __shfl_sync(~0u, here, spot) * 0.25f;
#pragma unroll
        for (int i = 0; i < EMBEDDING / 32; ++i) {
            values[i] *= inverse, means[i] += values[i] * share;
            reinterpret_cast<float*>(spots[first + spot])[lane + 32 * i] = values[i];
        }
    }
#pragma unroll
    for (int i = 0; i < EMBEDDING / 32; ++i) mean[warp][lane + 32 * i] = means[i];
    __syncwarp();
    for (int i = lane; i < 4 * KINDS; i += 32) {
        const int spot = i / KINDS, kind = i % KINDS;
        const float logit = job.kinds.read(image, row + spot / 2, column + spot % 2, kind);
        kinds[kind][first + spot] = sigmoid(logit) * text[first + spot];
    }
    __syncthreads();

    // One spot per lane, some of the words per warp.
    float cosines[WORDS / CELLS] = {};
#pragma unroll 4
    for (int quad = 0; quad < QUADS; ++quad) {
        const float4 value = spots[lane][quad];
#pragma unroll
        for (int i = 0; i < WORDS / CELLS; ++i) {
            const float4 word = sought[warp + CELLS * i][quad];
            cosines[i] += value.x * word.x + value.y * word.y + value.z * word.z + value.w * word.w;
        }
    }
#pragma unroll
    for (int i = 0; i < WORDS / CELLS; ++i)
        for (int way = 0; way < 2; ++way)
            found[way][warp + CELLS * i][lane] = sigmoid(job.steps[2 * way] * cosines[i] - job.steps[2 * way + 1]);
    const float shown = over_warp(lane < 4 ? here : 0.f) * 0.25f, heights = over_warp(lane < 4 ? high : 0.f) * 0.25f;
    scalar* to = job.inputs + (static_cast<long long>(image) * cells + cell) * job.pitch;
    const bool mine = wanted < cells;
    if (mine && lane < SEEN) {
        float sum = job.seen[EMBEDDING * SEEN + lane] * shown;
#pragma unroll 8
        for (int i = 0; i < EMBEDDING; ++i) sum += mean[warp][i] * seen[i][lane];
        to[SEEN_AT + lane] = narrow(sum);
    }
    __syncthreads();
    for (int map = warp; map < MAPS; map += CELLS) {
        float sum = 0;
#pragma unroll 8
        for (int word = 0; word < WORDS; ++word) sum += worth[word][map] * found[map >= SURE][word][lane];
        hits[map][lane] = sum * text[lane];
    }
    __syncthreads();
    if (blockIdx.x == 0) wait_for_previous();  // rule 1 of launch.py
    if (!mine) return;

    for (int i = lane; i < MAPS; i += 32) to[i] = narrow(best_of(hits[i] + first));
    for (int i = lane; i < KINDS; i += 32) to[KINDS_AT + i] = narrow(best_of(kinds[i] + first));
    for (int i = INPUTS + lane; i < job.pitch; i += 32) to[i] = narrow(0.f);
    if (lane == 4) {
        to[TEXT_AT] = narrow(best_of(text + first)), to[TEXT_AT + 1] = narrow(shown), to[TEXT_AT + 2] = narrow(heights);
    } else if (lane == 5) {
        const float down = (row + 0.5f) / job.rows, right = (column + 0.5f) / job.columns;
        to[PLACE_AT] = narrow(down), to[PLACE_AT + 1] = narrow(right);
        to[PLACE_AT + 2] = narrow(square(down - 0.5f)), to[PLACE_AT + 3] = narrow(square(right - 0.5f));
    } else if (lane < 4) {
        float best = hits[0][first + lane];
        for (int map = 1; map < SURE; ++map) best = fmaxf(best, hits[map][first + lane]);
        float score = job.direct[2 + KINDS] + job.direct[0] * here + job.direct[1] * best;
        for (int kind = 0; kind < KINDS; ++kind) score += job.direct[2 + kind] * kinds[kind][first + lane];
        const long long at = (static_cast<long long>(image) * job.rows + y) * job.columns + x;
        job.shown[at] = here, job.scores[at] = score;
    }
}

struct alignas(16) Sure { scalar values[SURE]; };

// One row or column per warp.
extern "C" __global__ void __launch_bounds__(256) scout_along(const __grid_constant__ Inputs job) {
    wait_for_previous();
    const int rows = job.rows / 2, columns = job.columns / 2, lane = threadIdx.x % 32;
    const int line = blockIdx.x * LINES + threadIdx.x / 32;
    if (line >= rows + columns) return;
    const bool right = line < rows;
    const int count = right ? columns : rows, step = (right ? 1 : columns) * job.pitch;
    scalar* from = job.inputs + static_cast<long long>(blockIdx.y) * rows * columns * job.pitch;
    from += right ? static_cast<long long>(line) * columns * job.pitch : (line - rows) * job.pitch;
    float before[SURE];
#pragma unroll
    for (int map = 0; map < SURE; ++map) before[map] = 0.f;  // hits are not negative
    for (int start = 0; start < count; start += 32) {
        scalar* at = from + static_cast<long long>(min(start + lane, count - 1)) * step;
        const Sure own = *reinterpret_cast<const Sure*>(at);
        Sure made;
#pragma unroll
        for (int map = 0; map < SURE; ++map) {
            float best = fmaxf(widen(own.values[map]), before[map]);
#pragma unroll
            for (int reach = 1; reach < 32; reach *= 2) best = fmaxf(best, __shfl_up_sync(~0u, best, reach));
            made.values[map] = narrow(best), before[map] = __shfl_sync(~0u, best, 31);
        }
        if (start + lane < count) *reinterpret_cast<Sure*>(at + ALONG_AT + (right ? 0 : SURE)) = made;
    }
}

// Encodes a question for the ranker (texturevlm/scout: letters.numbers, Spotter.question, Ranker.question).
//   scout_words: one word per block: its embedding, and its weight per map of hits
//   scout_films: one question per block: factors and shifts of the maps of each scale
// All in float. At most 72 of a word's 491 inputs are not zero, so only those are visited.
#include "scalar.cuh"

constexpr int WORDS = 24, LONGEST = 24, SYMBOLS = 39, PARTS = 6, PAIRS = 256;
constexpr int EMBEDDING = 64, INNER = 256, TRAITS = 7, WEIGHING = 32, MAPS = 12, STEER = 64, MOST_ASKED = 64;
constexpr int SHARES = 2 * LONGEST, TERMS = SHARES + LONGEST;  // the last term is the word's length
constexpr int GROUPS = 256 / EMBEDDING;

struct Asked {
    const long long* letters;  // (Q, WORDS, LONGEST), −1 after the last
    const float* traits;       // (Q, WORDS, TRAITS); the first says whether the word exists
    const float* asked;        // (Q, kinds)
    // Weights (inputs, outputs) and biases (outputs,)
    const float *inner, *inner_added, *embed, *embed_added;
    const float *weigh, *weigh_added, *worth_weight, *worth_added;
    const float *steer, *steer_added, *film, *film_added;
    float* words;  // (Q, WORDS, EMBEDDING), normalised; zero if there is no word
    float* worth;  // (Q, WORDS, MAPS)
    float* films;  // (Q, outputs)
    int kinds, outputs;
};

// A linear layer of at most 64 outputs. The block shares the inputs; thread i returns output i, the others 0.
__device__ float layer(const float* values, int inputs, const float* weights, const float* added, int outputs) {
    __shared__ float parts[GROUPS][EMBEDDING];
    const int output = threadIdx.x % EMBEDDING, group = threadIdx.x / EMBEDDING;
    float sum = 0;
    if (output < outputs)
#pragma unroll 8
        for (int input = group; input < inputs; input += GROUPS)
            sum += values[input] * __ldg(weights + input * outputs + output);
    __syncthreads();
    parts[group][output] = sum;
    __syncthreads();
    if (threadIdx.x >= outputs) return 0;
    float total = added[output];
    for (int i = 0; i < GROUPS; ++i) total += parts[i][output];
    return total;
}

// The inputs of a word that may not be zero: their indices and values. An index that occurs twice counts twice.
__device__ void spell(const long long* letters, int* which, float* value) {
    int length = 0;
    for (int i = 0; i < LONGEST; ++i) length += letters[i] >= 0;
    const int step = threadIdx.x;
    if (step >= LONGEST) return;
    const int letter = static_cast<int>(letters[step]);
    const int next = step + 1 < LONGEST ? static_cast<int>(letters[step + 1]) : -1;
    // A letter between the centres of two parts counts for both.
    const float middle = (step + 0.5f) / max(length, 1) * PARTS - 0.5f;
    const int part = static_cast<int>(floorf(middle));
    const float low = letter >= 0 && part >= 0 ? 1.f - (middle - part) : 0.f;
    const float high = letter >= 0 && part + 1 < PARTS ? middle - part : 0.f;
    const float sum = fmaxf(low + high, 1e-6f);
    which[2 * step] = max(letter, 0) * PARTS + max(part, 0), value[2 * step] = low / sum;
    which[2 * step + 1] = max(letter, 0) * PARTS + min(part + 1, PARTS - 1), value[2 * step + 1] = high / sum;
    const int term = SHARES + step;
    if (step + 1 == LONGEST) {
        which[term] = SYMBOLS * PARTS + PAIRS, value[term] = static_cast<float>(length) / LONGEST;
    } else {
        const bool pair = letter >= 0 && next >= 0;
        which[term] = SYMBOLS * PARTS + (pair ? (letter * SYMBOLS + next) * 40503 % 65536 * PAIRS / 65536 : 0);
        value[term] = pair ? 1.f : 0.f;
    }
}

extern "C" __global__ void __launch_bounds__(256) scout_words(const __grid_constant__ Asked job) {
    __shared__ int which[TERMS];
    __shared__ float value[TERMS], inner[INNER], weighing[WEIGHING], squares[EMBEDDING];
    let_next_start();
    const long long word = blockIdx.y * static_cast<long long>(WORDS) + blockIdx.x;
    const float* traits = job.traits + word * TRAITS;
    const float here = traits[0];
    spell(job.letters + word * LONGEST, which, value);
    __syncthreads();
    for (int unit = threadIdx.x; unit < INNER; unit += 256) {
        float sum = job.inner_added[unit];
#pragma unroll 24
        for (int term = 0; term < TERMS; ++term) sum += value[term] * __ldg(job.inner + which[term] * INNER + unit);
        inner[unit] = fmaxf(sum, 0.f);
    }
    __syncthreads();
    const float made = layer(inner, INNER, job.embed, job.embed_added, EMBEDDING);
    if (threadIdx.x < EMBEDDING) squares[threadIdx.x] = made * made;
    const float weighed = layer(traits, TRAITS, job.weigh, job.weigh_added, WEIGHING);
    if (threadIdx.x < WEIGHING) weighing[threadIdx.x] = fmaxf(weighed, 0.f);
    __syncthreads();
    if (threadIdx.x < EMBEDDING) {
        float sum = 0;
        for (int i = 0; i < EMBEDDING; ++i) sum += squares[i];
        job.words[word * EMBEDDING + threadIdx.x] = made / fmaxf(sqrtf(sum), 1e-12f) * here;
    }
    const float worth = layer(weighing, WEIGHING, job.worth_weight, job.worth_added, MAPS);
    if (threadIdx.x < MAPS) job.worth[word * MAPS + threadIdx.x] = (worth > 20.f ? worth : log1pf(expf(worth))) * here;
}

extern "C" __global__ void __launch_bounds__(256) scout_films(const __grid_constant__ Asked job) {
    __shared__ float given[MOST_ASKED + EMBEDDING], steer[STEER];
    let_next_start();
    const long long question = blockIdx.x;
    const float* traits = job.traits + question * WORDS * TRAITS;
    const float* words = job.words + question * WORDS * EMBEDDING;
    for (int i = threadIdx.x; i < job.kinds + EMBEDDING; i += 256) {
        if (i < job.kinds) {
            given[i] = job.asked[question * job.kinds + i];
            continue;
        }
        float sum = 0, count = 0;
#pragma unroll 8
        for (int word = 0; word < WORDS; ++word) {
            const float here = traits[word * TRAITS];
            sum += words[word * EMBEDDING + i - job.kinds] * here, count += here;
        }
        given[i] = sum / fmaxf(count, 1.f);
    }
    __syncthreads();
    const float made = layer(given, job.kinds + EMBEDDING, job.steer, job.steer_added, STEER);
    if (threadIdx.x < STEER) steer[threadIdx.x] = fmaxf(made, 0.f);
    __syncthreads();
    for (int output = threadIdx.x; output < job.outputs; output += 256) {
        float sum = job.film_added[output];
#pragma unroll 16
        for (int input = 0; input < STEER; ++input)
            sum += steer[input] * __ldg(job.film + input * job.outputs + output);
        job.films[question * job.outputs + output] = sum;
    }
}

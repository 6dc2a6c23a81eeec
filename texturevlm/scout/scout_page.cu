// The spotter's input from a page (`_grey` of scout.py): grey, resampled to the spotter's resolution, ink as 1 and
// paper as −1, the 4×4 pixels of a cell as channels. A block makes 64×16 pixels: it resamples the rows that it needs along x,
// some at a time, and sums them along y.
#include "scalar.cuh"

constexpr int STEM = 4, ACROSS = 64, DOWN = 16;
constexpr int STAGE = 20, TAPS = 3;  // rows and columns loaded at once: enough for all if the level has about the wanted size
constexpr float RED = 0.299f, GREEN = 0.587f, BLUE = 0.114f;

struct PageInput {
    const float* colours;           // (B, 3, height, width), pixels of a row contiguous
    scalar* cells;                  // (B, rows / STEM, columns / STEM, STEM · STEM)
    long long image, channel, row;  // strides
    int height, width;              // of the image
    int rows, columns;              // of the input
};

// One axis. A pixel of the result is a mean with a tent filter that reaches the centres of its neighbours, as in PyTorch's
// `interpolate` with antialias=True; linear interpolation if the image is enlarged.
struct Tent {
    float scale, reach, inverse;
    int extent;

    __device__ Tent(int from, int to)
        : scale(static_cast<float>(from) / to), reach(fmaxf(scale, 1.f)), inverse(1.f / reach), extent(from) {}
    __device__ float centre(int at) const { return scale * (at + 0.5f); }
    __device__ int first(int at) const { return max(static_cast<int>(centre(at) - reach + 0.5f), 0); }
    __device__ int end(int at) const { return min(static_cast<int>(centre(at) + reach + 0.5f), extent); }
    __device__ float weight(int pixel, float centre) const {
        return fmaxf(1.f - fabsf(pixel - centre + 0.5f) * inverse, 0.f);
    }
};

extern "C" __global__ void __launch_bounds__(256) scout_page(const __grid_constant__ PageInput job) {
    __shared__ float lines[STAGE][ACROSS];
    const Tent horizontal(job.width, job.columns), vertical(job.height, job.rows);
    const int tiles = (job.columns + ACROSS - 1) / ACROSS;
    const int left = blockIdx.x % tiles * ACROSS, top = blockIdx.x / tiles * DOWN;
    const int column = threadIdx.x % ACROSS, group = threadIdx.x / ACROSS;
    const float* image = job.colours + blockIdx.y * job.image;
    const int x = min(left + column, job.columns - 1), y = top + STEM * group;
    const float centre = horizontal.centre(x);
    const int begin = horizontal.first(x), end = horizontal.end(x), bottom = vertical.end(top + DOWN - 1);
    float total = 0, sums[STEM] = {}, weights[STEM] = {};
#pragma unroll 1
    for (int pixel = begin; pixel < end; ++pixel) total += horizontal.weight(pixel, centre);
    for (int start = vertical.first(top); start < bottom; start += STAGE) {
        const int stop = min(start + STAGE, bottom);
        for (int from = begin; from < end; from += TAPS) {  // one round if the page has mips
            float shares[TAPS];
            int pixels[TAPS];
#pragma unroll
            for (int i = 0; i < TAPS; ++i) {
                pixels[i] = min(from + i, end - 1);
                shares[i] = from + i < end ? horizontal.weight(from + i, centre) / total : 0.f;
            }
#pragma unroll 2
            for (int row = start + group; row < stop; row += 256 / ACROSS) {
                const float *red = image + row * job.row, *green = red + job.channel, *blue = green + job.channel;
                float sum = from == begin ? 0.f : lines[row - start][column];
#pragma unroll
                for (int i = 0; i < TAPS; ++i) {
                    const int at = pixels[i];
                    sum += shares[i] * (__ldg(red + at) * RED + __ldg(green + at) * GREEN + __ldg(blue + at) * BLUE);
                }
                lines[row - start][column] = sum;
            }
        }
        __syncthreads();
        const int own = max(start, vertical.first(y)), after = min(stop, vertical.end(y + STEM - 1));
#pragma unroll 2
        for (int row = own; row < after; ++row)
#pragma unroll
            for (int step = 0; step < STEM; ++step) {
                const float weight = vertical.weight(row, vertical.centre(y + step));
                sums[step] += weight * lines[row - start][column], weights[step] += weight;
            }
        __syncthreads();
    }
    if (blockIdx.x == 0) wait_for_previous();  // rule 1 of launch.py
    if (left + column >= job.columns) return;
    const long long line = blockIdx.y * static_cast<long long>(job.rows / STEM) + y / STEM;
    scalar* to = job.cells + (line * (job.columns / STEM) + x / STEM) * (STEM * STEM) + x % STEM;
#pragma unroll
    for (int step = 0; step < STEM; ++step) to[STEM * step] = narrow(1.f - 2.f * sums[step] / weights[step]);
}

// Reads a pyramid in plain memory as a texture unit would; the transpose of that, for gradients.
// A Sample is one footprint: where, at which level, and how many probes spread over which vector (see ops/lookup_reference.py).
#pragma once
#include "scalar.cuh"

struct Pyramid {
    const scalar* data[MAX_LEVELS];
    long long image[MAX_LEVELS], channel[MAX_LEVELS];  // strides, in elements: planar and channels-last both work
    int row[MAX_LEVELS], column[MAX_LEVELS];
    int height[MAX_LEVELS], width[MAX_LEVELS];
    const unsigned char* nearest;  // one per channel, 1: holds labels, never filtered; null: none does
    int levels, channels;
};

struct Sample {
    float x, y, lod, spread_x, spread_y;
    int probes;
};

__device__ __forceinline__ Sample sample_at_level(const float* point, float lod) { return {point[0], point[1], lod, 0.f, 0.f, 1}; }

__device__ __forceinline__ Sample sample_over_footprint(float x, float y, float2 ddx, float2 ddy, float max_anisotropy) {
    const float length_x = sqrtf(ddx.x * ddx.x + ddx.y * ddx.y), length_y = sqrtf(ddy.x * ddy.x + ddy.y * ddy.y);
    const float2 axis = length_x >= length_y ? ddx : ddy;
    const float longer = fmaxf(length_x, length_y), shorter = fminf(length_x, length_y);
    const float width = fmaxf(fmaxf(shorter, longer / max_anisotropy), 1.f);
    const float rest = fmaxf((longer - width) / fmaxf(longer, 1e-20f), 0.f);
    const float probes = fminf(fmaxf(ceilf(longer / width - 1e-3f), 1.f), max_anisotropy);
    return {x, y, log2f(width), axis.x * rest, axis.y * rest, static_cast<int>(probes)};
}

__device__ __forceinline__ Sample sample_of_patch(const float* centre, const float* ddx, const float* ddy, int patch, int pixel, float max_anisotropy) {
    const float u = pixel % patch + 0.5f - patch * 0.5f, v = pixel / patch + 0.5f - patch * 0.5f;
    const float2 x_axis = {ddx[0], ddx[1]}, y_axis = {ddy[0], ddy[1]};
    return sample_over_footprint(centre[0] + u * x_axis.x + v * y_axis.x, centre[1] + u * x_axis.y + v * y_axis.y,
                                 x_axis, y_axis, max_anisotropy);
}

// How far along `spread` a probe sits, from -1/2 to 1/2.
__device__ __forceinline__ float probe_offset(const Sample& sample, int probe) {
    return sample.probes > 1 ? static_cast<float>(probe) / (sample.probes - 1) - 0.5f : 0.f;
}

// The four texels around a point on one level, with what is needed to blend them and to differentiate the blend.
struct Corner {
    int offset[4];           // in a channel's plane: top left, top right, bottom left, bottom right
    float right, down;       // fractions
    float slope_x, slope_y;  // d(level position) / d(level-0 position); 0 where the border is clamped
};

__device__ __forceinline__ float along(float position, int extent, int finest, int* first, int* second, float* slope) {
    const float scale = static_cast<float>(extent) / finest, texel = position * scale - 0.5f;
    const float inside = fminf(fmaxf(texel, 0.f), extent - 1.f);
    *slope = texel == inside ? scale : 0.f;
    *first = static_cast<int>(inside);
    *second = min(*first + 1, extent - 1);
    return inside - *first;
}

__device__ __forceinline__ Corner corner(const Pyramid& pyramid, int level, float x, float y) {
    Corner at;
    int x0, x1, y0, y1;
    at.right = along(x, pyramid.width[level], pyramid.width[0], &x0, &x1, &at.slope_x);
    at.down = along(y, pyramid.height[level], pyramid.height[0], &y0, &y1, &at.slope_y);
    const int row = pyramid.row[level], column = pyramid.column[level];
    at.offset[0] = y0 * row + x0 * column;
    at.offset[1] = y0 * row + x1 * column;
    at.offset[2] = y1 * row + x0 * column;
    at.offset[3] = y1 * row + x1 * column;
    return at;
}

struct Between {
    int fine, coarse;
    float blend;
    bool clamped;
};

__device__ __forceinline__ Between between(float lod, int levels) {
    const float inside = fminf(fmaxf(lod, 0.f), levels - 1.f);
    const int fine = static_cast<int>(inside);
    return {fine, min(fine + 1, levels - 1), inside - fine, inside != lod};
}

__device__ __forceinline__ const scalar* plane_of(const Pyramid& pyramid, int level, int image, int channel) {
    return pyramid.data[level] + image * pyramid.image[level] + channel * pyramid.channel[level];
}

__device__ __forceinline__ float read_nearest(const Pyramid& pyramid, const Sample& sample, int image, int channel) {
    const int level = static_cast<int>(fminf(fmaxf(sample.lod, 0.f), pyramid.levels - 1.f) + 0.5f);
    const int height = pyramid.height[level], width = pyramid.width[level];
    const int x = min(max(static_cast<int>(floorf(sample.x * (static_cast<float>(width) / pyramid.width[0]))), 0), width - 1);
    const int y = min(max(static_cast<int>(floorf(sample.y * (static_cast<float>(height) / pyramid.height[0]))), 0), height - 1);
    return widen(plane_of(pyramid, level, image, channel)[y * pyramid.row[level] + x * pyramid.column[level]]);
}

__device__ __forceinline__ float bilinear(const scalar* texels, const Corner& at) {
    const float a = widen(texels[at.offset[0]]), b = widen(texels[at.offset[1]]);
    const float c = widen(texels[at.offset[2]]), d = widen(texels[at.offset[3]]);
    const float top = a + (b - a) * at.right, bottom = c + (d - c) * at.right;
    return top + (bottom - top) * at.down;
}

// Channels first … first + COUNT of one sample. Geometry once, then independent loads for every channel.
template <int COUNT>
__device__ __forceinline__ void read_sample(const Pyramid& pyramid, const Sample& sample, int image, int first, float (&value)[COUNT]) {
    const Between levels = between(sample.lod, pyramid.levels);
    const float share = 1.f / sample.probes;
#pragma unroll
    for (int i = 0; i < COUNT; ++i) value[i] = 0.f;
    for (int probe = 0; probe < sample.probes; ++probe) {
        const float offset = probe_offset(sample, probe);
        const float x = sample.x + offset * sample.spread_x, y = sample.y + offset * sample.spread_y;
        const Corner fine = corner(pyramid, levels.fine, x, y), coarse = corner(pyramid, levels.coarse, x, y);
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            const int channel = min(first + i, pyramid.channels - 1);
            const float near = bilinear(plane_of(pyramid, levels.fine, image, channel), fine);
            const float far = bilinear(plane_of(pyramid, levels.coarse, image, channel), coarse);
            value[i] += (near + (far - near) * levels.blend) * share;
        }
    }
    if (pyramid.nearest)
#pragma unroll
        for (int i = 0; i < COUNT; ++i)
            if (first + i < pyramid.channels && pyramid.nearest[first + i])
                value[i] = read_nearest(pyramid, sample, image, first + i);
}

// Gradients are added by atomics: those of texels into float levels, those of a sample's five numbers into `sample`.
struct Gradient {
    float* data[MAX_LEVELS];  // zeroed, in the layout that the kernel says; null: texels need none
    float* sample;            // (samples, 5): x, y, lod, spread_x, spread_y, zeroed; null: samples need none
};

// Adds the gradient of a sample's five numbers that COUNT channels from `first` on bring. `upstream` is 0 beyond the last
// channel and for channels that are not filtered.
template <int COUNT>
__device__ __forceinline__ void add_sample_gradient(const Pyramid& pyramid, const Gradient& gradient, const Sample& sample, int image,
                                                    int first, const float (&upstream)[COUNT], long long index) {
    const Between levels = between(sample.lod, pyramid.levels);
    const float share = 1.f / sample.probes;
    float of_x = 0.f, of_y = 0.f, of_lod = 0.f, of_spread_x = 0.f, of_spread_y = 0.f;
    for (int probe = 0; probe < sample.probes; ++probe) {
        const float offset = probe_offset(sample, probe);
        const float x = sample.x + offset * sample.spread_x, y = sample.y + offset * sample.spread_y;
        float probe_x = 0.f, probe_y = 0.f;
#pragma unroll
        for (int which = 0; which < 2; ++which) {
            const int level = which ? levels.coarse : levels.fine;
            const float part = (which ? levels.blend : 1.f - levels.blend) * share;
            const Corner at = corner(pyramid, level, x, y);
#pragma unroll
            for (int i = 0; i < COUNT; ++i) {
                if (upstream[i] == 0.f) continue;
                const scalar* texels = plane_of(pyramid, level, image, first + i);
                const float a = widen(texels[at.offset[0]]), b = widen(texels[at.offset[1]]);
                const float c = widen(texels[at.offset[2]]), d = widen(texels[at.offset[3]]);
                const float top = a + (b - a) * at.right, bottom = c + (d - c) * at.right;
                probe_x += upstream[i] * part * at.slope_x * ((b - a) * (1.f - at.down) + (d - c) * at.down);
                probe_y += upstream[i] * part * at.slope_y * (bottom - top);
                of_lod += upstream[i] * share * (which ? 1.f : -1.f) * (top + (bottom - top) * at.down);
            }
        }
        of_x += probe_x, of_y += probe_y;
        of_spread_x += probe_x * offset, of_spread_y += probe_y * offset;
    }
    float* to = gradient.sample + index * 5;
    atomicAdd(to, of_x);
    atomicAdd(to + 1, of_y);
    if (!levels.clamped) atomicAdd(to + 2, of_lod);
    if (sample.probes == 1) return;  // nothing is spread
    atomicAdd(to + 3, of_spread_x);
    atomicAdd(to + 4, of_spread_y);
}

// The transpose of read_sample into planar gradients, for COUNT channels from `first` on; `upstream` as above.
template <int COUNT>
__device__ __forceinline__ void add_texel_gradient(const Pyramid& pyramid, const Gradient& gradient, const Sample& sample, int image,
                                                   int first, const float (&upstream)[COUNT]) {
    const Between levels = between(sample.lod, pyramid.levels);
    const float share = 1.f / sample.probes;
    for (int probe = 0; probe < sample.probes; ++probe) {
        const float offset = probe_offset(sample, probe);
        const float x = sample.x + offset * sample.spread_x, y = sample.y + offset * sample.spread_y;
#pragma unroll
        for (int which = 0; which < 2; ++which) {
            const int level = which ? levels.coarse : levels.fine, height = pyramid.height[level], width = pyramid.width[level];
            const float part = (which ? levels.blend : 1.f - levels.blend) * share;
            float* image_start = gradient.data[level] + (static_cast<long long>(image) * pyramid.channels + first) * height * width;
            int x0, x1, y0, y1;
            float slope;
            const float right = along(x, width, pyramid.width[0], &x0, &x1, &slope);
            const float down = along(y, height, pyramid.height[0], &y0, &y1, &slope);
#pragma unroll
            for (int i = 0; i < COUNT; ++i) {
                if (upstream[i] == 0.f) continue;
                float* upper = image_start + (static_cast<long long>(i) * height + y0) * width;
                float* lower = image_start + (static_cast<long long>(i) * height + y1) * width;
                const float top = upstream[i] * part * (1.f - down), bottom = upstream[i] * part * down;
                atomicAdd(upper + x0, top * (1.f - right));
                atomicAdd(upper + x1, top * right);
                atomicAdd(lower + x0, bottom * (1.f - right));
                atomicAdd(lower + x1, bottom * right);
            }
        }
    }
}

// Shared by the kernels that write layers. A slot is the channel of a layer; −1 means not wanted.
#pragma once

__device__ __forceinline__ int inside(int at, int extent) { return min(max(at, 0), extent - 1); }

// The luma of pixel i of three planes (red, green, blue).
__device__ __forceinline__ float luma(const float* image, long long plane, int i) {
    return __ldg(image + i) * 0.299f + __ldg(image + plane + i) * 0.587f + __ldg(image + 2 * plane + i) * 0.114f;
}

struct Layers {
    float* start;  // (B, C, H, W)
    int channels, height, width;

    __device__ long long plane() const { return static_cast<long long>(height) * width; }
    __device__ float* image(int index) const { return start + index * channels * plane(); }
};

struct Tile {
    int y, x, image;  // its first pixel
};

// Tile `number` of all images.
__device__ __forceinline__ Tile tile_of(const Layers& layers, int number, int rows, int columns) {
    const int across = (layers.width + columns - 1) / columns, down = (layers.height + rows - 1) / rows;
    const int strip = number / across, image = strip / down;
    return {(strip - image * down) * rows, (number - strip * across) * columns, image};
}

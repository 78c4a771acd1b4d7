// Elementwise kernels that are limited by memory: each thread moves several vectors of 16 bytes.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cstdint>

namespace {

struct Gelu;

constexpr int kThreads = 256;

// Vectors of a thread, as measured on an H200: what only moves data is fastest with one; what computes hides the latency
// of the memory with several loads in flight.
template <typename T, typename F>
constexpr int kVectors = 1;
template <typename T>
constexpr int kVectors<T, Gelu> = sizeof(T) == 4 ? 2 : 4;

template <typename T>
struct alignas(16) Vector {
    T value[16 / sizeof(T)];
};

struct Square {
    __device__ float operator()(float x) const { return x * x; }
};

struct Gelu {
    __device__ float operator()(float x) const { return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f)); }
};

struct Add {
    __device__ float operator()(float x, float y) const { return x + y; }
};

template <typename T, typename F>
__global__ void unary(const T* __restrict__ in, T* __restrict__ out, int64_t n, F f) {
    constexpr int width = 16 / sizeof(T), each = kVectors<T, F>;
    const int64_t vectors = n / width;
    const int64_t first = int64_t(blockIdx.x) * kThreads * each + threadIdx.x;
    const auto* from = reinterpret_cast<const Vector<T>*>(in);
    auto* to = reinterpret_cast<Vector<T>*>(out);
    Vector<T> loaded[each];
#pragma unroll
    for (int i = 0; i < each; ++i) {
        const int64_t at = first + int64_t(i) * kThreads;
        if (at < vectors) loaded[i] = from[at];
    }
#pragma unroll
    for (int i = 0; i < each; ++i) {
        const int64_t at = first + int64_t(i) * kThreads;
        if (at >= vectors) continue;
#pragma unroll
        for (int j = 0; j < width; ++j) loaded[i].value[j] = T(f(float(loaded[i].value[j])));
        to[at] = loaded[i];
    }
    // What is left over fits into one block.
    if (blockIdx.x == 0 && threadIdx.x < n - vectors * width) {
        const int64_t at = vectors * width + threadIdx.x;
        out[at] = T(f(float(in[at])));
    }
}

template <typename T, typename F>
__global__ void binary(const T* __restrict__ a, const T* __restrict__ b, T* __restrict__ out, int64_t n, F f) {
    constexpr int width = 16 / sizeof(T), each = kVectors<T, F>;
    const int64_t vectors = n / width;
    const int64_t first = int64_t(blockIdx.x) * kThreads * each + threadIdx.x;
    const auto* left = reinterpret_cast<const Vector<T>*>(a);
    const auto* right = reinterpret_cast<const Vector<T>*>(b);
    auto* to = reinterpret_cast<Vector<T>*>(out);
    Vector<T> x[each], y[each];
#pragma unroll
    for (int i = 0; i < each; ++i) {
        const int64_t at = first + int64_t(i) * kThreads;
        if (at < vectors) x[i] = left[at], y[i] = right[at];
    }
#pragma unroll
    for (int i = 0; i < each; ++i) {
        const int64_t at = first + int64_t(i) * kThreads;
        if (at >= vectors) continue;
#pragma unroll
        for (int j = 0; j < width; ++j) x[i].value[j] = T(f(float(x[i].value[j]), float(y[i].value[j])));
        to[at] = x[i];
    }
    if (blockIdx.x == 0 && threadIdx.x < n - vectors * width) {
        const int64_t at = vectors * width + threadIdx.x;
        out[at] = T(f(float(a[at]), float(b[at])));
    }
}

template <typename T, typename F>
unsigned blocks(int64_t n) {
    const int64_t each = int64_t(kThreads) * kVectors<T, F> * (16 / sizeof(T));
    return unsigned((n + each - 1) / each);
}

template <typename T, typename F>
int launch(const void* in, void* out, int64_t n, cudaStream_t stream, F f) {
    unary<T><<<blocks<T, F>(n), kThreads, 0, stream>>>(static_cast<const T*>(in), static_cast<T*>(out), n, f);
    return int(cudaGetLastError());
}

template <typename F>
int of_type(int type, const void* in, void* out, int64_t n, void* stream, F f) {
    auto s = static_cast<cudaStream_t>(stream);
    switch (type) {
        case 0: return launch<float>(in, out, n, s, f);
        case 1: return launch<__half>(in, out, n, s, f);
        case 2: return launch<__nv_bfloat16>(in, out, n, s, f);
        default: return int(cudaErrorInvalidValue);
    }
}

template <typename T>
int launch_add(const void* a, const void* b, void* out, int64_t n, cudaStream_t stream) {
    binary<T><<<blocks<T, Add>(n), kThreads, 0, stream>>>(
        static_cast<const T*>(a), static_cast<const T*>(b), static_cast<T*>(out), n, Add());
    return int(cudaGetLastError());
}

}  // namespace

// type: 0 float32, 1 float16, 2 bfloat16. All pointers are aligned to 16 bytes. Returns a CUDA error code.
extern "C" int square(int type, const void* in, void* out, int64_t n, void* stream) {
    return of_type(type, in, out, n, stream, Square());
}

extern "C" int gelu(int type, const void* in, void* out, int64_t n, void* stream) {
    return of_type(type, in, out, n, stream, Gelu());
}

extern "C" int add(int type, const void* a, const void* b, void* out, int64_t n, void* stream) {
    auto s = static_cast<cudaStream_t>(stream);
    switch (type) {
        case 0: return launch_add<float>(a, b, out, n, s);
        case 1: return launch_add<__half>(a, b, out, n, s);
        case 2: return launch_add<__nv_bfloat16>(a, b, out, n, s);
        default: return int(cudaErrorInvalidValue);
    }
}

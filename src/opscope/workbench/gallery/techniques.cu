// The basic techniques of optimisation as pairs of kernels, a slow and a fast one, that compute the same.
#include <algorithm>
#include <cstdint>

namespace {

constexpr int kThreads = 256;
constexpr int kSmallBlock = 64;  // 32 of them fill a multiprocessor
constexpr int kTile = 32;
constexpr int kTileLines = 8;          // rows of a tile that a block moves at once
constexpr int64_t kMostLines = 65535;  // blocks of a grid in the direction y

unsigned blocks(int64_t n, int64_t each) { return unsigned((n + each - 1) / each); }

// A grid whose threads in the direction x lie along lines; it may have fewer blocks than there are lines.
dim3 along(int64_t length, int64_t lines) {
    return dim3(blocks(length, kThreads), unsigned(std::min(lines, kMostLines)));
}

__device__ int64_t thread_of_grid() { return int64_t(blockIdx.x) * blockDim.x + threadIdx.x; }

// Neighbouring threads copy neighbours in a row, or in a column; all else is the same.
template <bool kAlongRows>
__global__ void copy_matrix(const float* __restrict__ in, float* __restrict__ out, int64_t rows, int64_t columns) {
    const int64_t length = kAlongRows ? columns : rows, lines = kAlongRows ? rows : columns;
    const int64_t place = thread_of_grid();
    if (place >= length) return;
    for (int64_t line = blockIdx.y; line < lines; line += gridDim.y) {
        const int64_t at = kAlongRows ? line * columns + place : place * columns + line;
        out[at] = in[at];
    }
}

template <bool kAlongRows>
int launch_copy(const void* in, void* out, int64_t rows, int64_t columns, void* stream) {
    const dim3 grid = kAlongRows ? along(columns, rows) : along(rows, columns);
    copy_matrix<kAlongRows><<<grid, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
        static_cast<const float*>(in), static_cast<float*>(out), rows, columns);
    return int(cudaGetLastError());
}

// A warp reads a piece of a row, and writes a piece of a column.
__global__ void transpose_directly(const float* __restrict__ in, float* __restrict__ out, int64_t rows,
                                   int64_t columns) {
    const int64_t column = int64_t(blockIdx.x) * kTile + threadIdx.x, first = int64_t(blockIdx.y) * kTile + threadIdx.y;
#pragma unroll
    for (int i = 0; i < kTile; i += kTileLines) {
        const int64_t row = first + i;
        if (row < rows && column < columns) out[column * rows + row] = in[row * columns + column];
    }
}

// A warp reads a piece of a row, and writes one, too: the tile is turned in shared memory. Neighbours in one of its
// columns are kPitch words apart: with 32 all of them are in the same bank, with 33 each is in another.
template <int kPitch>
__global__ void transpose_by_tiles(const float* __restrict__ in, float* __restrict__ out, int64_t rows,
                                   int64_t columns) {
    __shared__ float tile[kTile][kPitch];
    const int64_t column = int64_t(blockIdx.x) * kTile + threadIdx.x, first = int64_t(blockIdx.y) * kTile + threadIdx.y;
#pragma unroll
    for (int i = 0; i < kTile; i += kTileLines) {
        const int64_t row = first + i;
        if (row < rows && column < columns) tile[threadIdx.y + i][threadIdx.x] = in[row * columns + column];
    }
    __syncthreads();
    const int64_t row = int64_t(blockIdx.y) * kTile + threadIdx.x;
    const int64_t first_column = int64_t(blockIdx.x) * kTile + threadIdx.y;
#pragma unroll
    for (int i = 0; i < kTile; i += kTileLines) {
        const int64_t of_result = first_column + i;
        if (row < rows && of_result < columns) out[of_result * rows + row] = tile[threadIdx.x][threadIdx.y + i];
    }
}

using Transposition = void (*)(const float*, float*, int64_t, int64_t);

int launch_transposition(Transposition kernel, const void* in, void* out, int64_t rows, int64_t columns, void* stream) {
    const dim3 grid(blocks(columns, kTile), blocks(rows, kTile)), block(kTile, kTileLines);
    kernel<<<grid, block, 0, static_cast<cudaStream_t>(stream)>>>(static_cast<const float*>(in),
                                                                  static_cast<float*>(out), rows, columns);
    return int(cudaGetLastError());
}

// The square root of 1 + |x| by Newton's method.
__device__ float newton(float x, int64_t steps) {
    const float a = 1.0f + fabsf(x);
    float y = a;
    for (int64_t i = 0; i < steps; ++i) y = 0.5f * (y + a / y);
    return y;
}

// The solution of Kepler's equation y = x + sin(y) / 2 by iteration.
__device__ float kepler(float x, int64_t steps) {
    float y = x;
    for (int64_t i = 0; i < steps; ++i) y = fmaf(0.5f, sinf(y), x);
    return y;
}

// Each thread computes one element; which one says `order`, and thereby whether the threads of a warp agree.
__global__ void choose_by_flag(const float* __restrict__ in, const int* __restrict__ flags,
                               const int* __restrict__ order, float* __restrict__ out, int64_t n, int64_t steps) {
    const int64_t thread = thread_of_grid();
    if (thread >= n) return;
    const int at = order[thread];
    if (flags[at])
        out[at] = kepler(in[at], steps);
    else
        out[at] = newton(in[at], steps);
}

// Each load says where the next one is: a warp waits most of the time, and only other warps can use it.
__global__ void follow_links(const float* __restrict__ in, const int* __restrict__ next, float* __restrict__ out,
                             int64_t n, int64_t steps) {
    const int64_t thread = thread_of_grid();
    if (thread >= n) return;
    int at = int(thread);
    float sum = 0.0f;
    for (int64_t i = 0; i < steps; ++i) {
        at = next[at];
        sum += in[at];
    }
    out[thread] = sum;
}

int launch_links(const void* in, const void* next, void* out, int64_t n, int64_t steps, bool alone, void* stream) {
    int device = 0, most = 0;  // the most shared memory of a block: more than half of a multiprocessor's
    cudaError_t error = cudaGetDevice(&device);
    if (!error) error = cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    if (!error) error = cudaFuncSetAttribute(follow_links, cudaFuncAttributeMaxDynamicSharedMemorySize, most);
    // The same split into L1 cache and shared memory for both, so that they differ in their occupancy alone.
    constexpr int split = cudaSharedmemCarveoutMaxShared;
    if (!error) error = cudaFuncSetAttribute(follow_links, cudaFuncAttributePreferredSharedMemoryCarveout, split);
    if (error) return int(error);
    follow_links<<<blocks(n, kSmallBlock), kSmallBlock, alone ? most : 0, static_cast<cudaStream_t>(stream)>>>(
        static_cast<const float*>(in), static_cast<const int*>(next), static_cast<float*>(out), n, steps);
    return int(cudaGetLastError());
}

__global__ void scale_floats(const float* __restrict__ in, float* __restrict__ out, int64_t n, float factor) {
    const int64_t at = thread_of_grid();
    if (at < n) out[at] = factor * in[at];
}

// Each thread moves 16 bytes at once; the thread after the last whole vector moves what is left, three at most.
__global__ void scale_vectors(const float* __restrict__ in, float* __restrict__ out, int64_t n, float factor) {
    const int64_t vector = thread_of_grid(), whole = n / 4;
    if (vector < whole) {
        const float4 x = reinterpret_cast<const float4*>(in)[vector];
        reinterpret_cast<float4*>(out)[vector] = make_float4(factor * x.x, factor * x.y, factor * x.z, factor * x.w);
    } else if (vector == whole) {
        for (int64_t at = 4 * whole; at < n; ++at) out[at] = factor * in[at];
    }
}

// Not fmaxf, which makes zero of what is no number.
__device__ float positive(float x) { return x < 0.0f ? 0.0f : x; }

__global__ void add_to_columns(const float* __restrict__ in, const float* __restrict__ bias, float* __restrict__ out,
                               int64_t rows, int64_t columns) {
    const int64_t column = thread_of_grid();
    if (column >= columns) return;
    for (int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
        out[row * columns + column] = in[row * columns + column] + bias[column];
    }
}

__global__ void cut_negative(const float* __restrict__ in, float* __restrict__ out, int64_t n) {
    const int64_t at = thread_of_grid();
    if (at < n) out[at] = positive(in[at]);
}

__global__ void scale_add_cut(const float* __restrict__ in, const float* __restrict__ bias, float* __restrict__ out,
                              int64_t rows, int64_t columns, float factor) {
    const int64_t column = thread_of_grid();
    if (column >= columns) return;
    for (int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
        out[row * columns + column] = positive(fmaf(factor, in[row * columns + column], bias[column]));
    }
}

// In a graph it reads and writes the same place, so its pointers may be equal.
__global__ void sine_of_each(const float* in, float* out, int64_t n) {
    const int64_t at = thread_of_grid();
    if (at < n) out[at] = sinf(in[at]);
}

// A chain of kernels as a graph. The first one reads from the tensor of a call, the last one writes to it.
struct Chain {
    cudaGraph_t graph = nullptr;  // names the nodes of what is launched, so it stays
    cudaGraphExec_t launched = nullptr;
    cudaGraphNode_t first = nullptr, last = nullptr;
    float* between = nullptr;
    int64_t n = 0;
};

// Call a function with the node of a graph that is one kernel of the chain.
template <typename F>
cudaError_t as_node(const float* in, float* out, int64_t n, F function) {
    void* arguments[] = {&in, &out, &n};
    cudaKernelNodeParams node{};
    node.func = reinterpret_cast<void*>(sine_of_each);
    node.gridDim = dim3(blocks(n, kThreads));
    node.blockDim = dim3(kThreads);
    node.kernelParams = arguments;
    return function(node);
}

}  // namespace

// All pointers are of float32 or int32, of the current device, and aligned to 16 bytes; no size is zero. Matrices have
// their rows one after the other. All functions return a CUDA error code.

extern "C" int copy_along_columns(const void* in, void* out, int64_t rows, int64_t columns, void* stream) {
    return launch_copy<false>(in, out, rows, columns, stream);
}

extern "C" int copy_along_rows(const void* in, void* out, int64_t rows, int64_t columns, void* stream) {
    return launch_copy<true>(in, out, rows, columns, stream);
}

extern "C" int transpose_naive(const void* in, void* out, int64_t rows, int64_t columns, void* stream) {
    return launch_transposition(transpose_directly, in, out, rows, columns, stream);
}

extern "C" int transpose_tile_32(const void* in, void* out, int64_t rows, int64_t columns, void* stream) {
    return launch_transposition(transpose_by_tiles<kTile>, in, out, rows, columns, stream);
}

extern "C" int transpose_tile_33(const void* in, void* out, int64_t rows, int64_t columns, void* stream) {
    return launch_transposition(transpose_by_tiles<kTile + 1>, in, out, rows, columns, stream);
}

// Where a flag is set, Kepler's equation, else a square root, of `steps` steps. order: a permutation of the elements.
extern "C" int choose(const void* in, const void* flags, const void* order, void* out, int64_t n, int64_t steps,
                      void* stream) {
    choose_by_flag<<<blocks(n, kThreads), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
        static_cast<const float*>(in), static_cast<const int*>(flags), static_cast<const int*>(order),
        static_cast<float*>(out), n, steps);
    return int(cudaGetLastError());
}

// The sum of the values that `steps` links lead to, from each element. next: less than n everywhere.
extern "C" int follow_alone(const void* in, const void* next, void* out, int64_t n, int64_t steps, void* stream) {
    return launch_links(in, next, out, n, steps, true, stream);
}

extern "C" int follow_together(const void* in, const void* next, void* out, int64_t n, int64_t steps, void* stream) {
    return launch_links(in, next, out, n, steps, false, stream);
}

extern "C" int scale_by_float(const void* in, void* out, int64_t n, float factor, void* stream) {
    scale_floats<<<blocks(n, kThreads), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
        static_cast<const float*>(in), static_cast<float*>(out), n, factor);
    return int(cudaGetLastError());
}

extern "C" int scale_by_float4(const void* in, void* out, int64_t n, float factor, void* stream) {
    scale_vectors<<<blocks(n, 4 * kThreads), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
        static_cast<const float*>(in), static_cast<float*>(out), n, factor);
    return int(cudaGetLastError());
}

extern "C" int add_bias(const void* in, const void* bias, void* out, int64_t rows, int64_t columns, void* stream) {
    add_to_columns<<<along(columns, rows), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
        static_cast<const float*>(in), static_cast<const float*>(bias), static_cast<float*>(out), rows, columns);
    return int(cudaGetLastError());
}

extern "C" int relu(const void* in, void* out, int64_t n, void* stream) {
    cut_negative<<<blocks(n, kThreads), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(static_cast<const float*>(in),
                                                                                          static_cast<float*>(out), n);
    return int(cudaGetLastError());
}

extern "C" int scale_bias_relu(const void* in, const void* bias, void* out, int64_t rows, int64_t columns, float factor,
                               void* stream) {
    scale_add_cut<<<along(columns, rows), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
        static_cast<const float*>(in), static_cast<const float*>(bias), static_cast<float*>(out), rows, columns,
        factor);
    return int(cudaGetLastError());
}

extern "C" int sine(const void* in, void* out, int64_t n, void* stream) {
    sine_of_each<<<blocks(n, kThreads), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(static_cast<const float*>(in),
                                                                                          static_cast<float*>(out), n);
    return int(cudaGetLastError());
}

// Make a graph of two or more sines after each other; between: n numbers that it may use in every replay. It is never
// freed. The stream is not used.
extern "C" int record_sines(void* between, int64_t n, int64_t kernels, void** recorded, void*) {
    if (kernels < 2) return int(cudaErrorInvalidValue);
    auto* const chain = new Chain{};
    *recorded = chain;
    chain->between = static_cast<float*>(between);
    chain->n = n;
    cudaError_t error = cudaGraphCreate(&chain->graph, 0);
    for (int64_t i = 0; i < kernels && !error; ++i) {
        const cudaGraphNode_t before = chain->last;
        error = as_node(chain->between, chain->between, n, [&](const cudaKernelNodeParams& node) {
            return cudaGraphAddKernelNode(&chain->last, chain->graph, &before, i > 0, &node);
        });
        if (i == 0) chain->first = chain->last;
    }
    return int(error ? error : cudaGraphInstantiateWithFlags(&chain->launched, chain->graph, 0));
}

// Launches that are under way keep the tensors that they were given.
extern "C" int replay_sines(void* recorded, const void* in, void* out, void* stream) {
    const Chain& chain = *static_cast<const Chain*>(recorded);
    const auto set = [&](cudaGraphNode_t at) {
        return [&chain, at](const cudaKernelNodeParams& node) {
            return cudaGraphExecKernelNodeSetParams(chain.launched, at, &node);
        };
    };
    cudaError_t error = as_node(static_cast<const float*>(in), chain.between, chain.n, set(chain.first));
    if (!error) error = as_node(chain.between, static_cast<float*>(out), chain.n, set(chain.last));
    return int(error ? error : cudaGraphLaunch(chain.launched, static_cast<cudaStream_t>(stream)));
}

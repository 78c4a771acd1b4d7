// Adds two arrays of a million numbers in unified memory, in three launch shapes, and times each.
//
//     opscope kernel build examples/unified_memory/add.cu && examples/unified_memory/add
//
// One thread does all the work in turn; one block uses one multiprocessor of many; a grid over all elements uses them all.
// Times are of the kernel alone, by events, after the pages were moved to the device.
#include <cmath>
#include <cstdio>
#include <cstdlib>

__global__ void add(int n, const float* x, float* y) {
    const int first = blockIdx.x * blockDim.x + threadIdx.x, step = blockDim.x * gridDim.x;
    for (int i = first; i < n; i += step) y[i] = x[i] + y[i];
}

void check(cudaError_t code, const char* what) {
    if (code == cudaSuccess) return;
    std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(code));
    std::exit(1);
}

float milliseconds(int blocks, int threads, int n, const float* x, float* y) {
    for (int i = 0; i < n; ++i) y[i] = 2.0f;
    // The first run moves the pages, and loads the kernel; the second one is timed.
    cudaEvent_t before, after;
    check(cudaEventCreate(&before), "event");
    check(cudaEventCreate(&after), "event");
    float elapsed = 0;
    for (int run = 0; run < 2; ++run) {
        check(cudaEventRecord(before), "record");
        add<<<blocks, threads>>>(n, x, y);
        check(cudaGetLastError(), "launch");
        check(cudaEventRecord(after), "record");
        check(cudaEventSynchronize(after), "synchronize");
        check(cudaEventElapsedTime(&elapsed, before, after), "elapsed");
    }
    float far = 0;
    for (int i = 0; i < n; ++i) far = std::fmax(far, std::fabs(y[i] - 4.0f));  // 2 + 1 + 1
    if (far != 0) {
        std::fprintf(stderr, "a result is wrong by %g\n", far);
        std::exit(1);
    }
    return elapsed;
}

int main() {
    const int n = 1 << 20, threads = 256;
    float *x, *y;
    check(cudaMallocManaged(&x, n * sizeof(float)), "cudaMallocManaged");
    check(cudaMallocManaged(&y, n * sizeof(float)), "cudaMallocManaged");
    for (int i = 0; i < n; ++i) x[i] = 1.0f;
    const struct { const char* name; int blocks, threads; } shapes[] = {
        {"one thread", 1, 1}, {"one block", 1, threads}, {"full grid", (n + threads - 1) / threads, threads}};
    for (const auto& shape : shapes) {
        const float time = milliseconds(shape.blocks, shape.threads, n, x, y);
        std::printf("%-10s <<<%d, %d>>>: %9.4f ms, %8.2f GB/s\n", shape.name, shape.blocks, shape.threads, time,
                    3.0 * n * sizeof(float) / time / 1e6);
    }
    check(cudaFree(x), "free");
    check(cudaFree(y), "free");
    return 0;
}

// Programs whose launches are known, for tests of opscope exec on a GPU.
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>

__global__ void spin(long cycles) {
    const long begin = clock64();
    while (clock64() - begin < cycles) {
    }
}
__global__ void one(float* x) { x[threadIdx.x] += 1; }
__global__ void two(float* x, int n) {
    for (int i = 0; i < n; ++i) x[threadIdx.x] *= 1.0001f;
}
__global__ void add(int n, const float* x, float* y) {
    const int first = blockIdx.x * blockDim.x + threadIdx.x, step = blockDim.x * gridDim.x;
    for (int i = first; i < n; i += step) y[i] = x[i] + y[i];
}

int main(int count, char** arguments) {
    const std::string mode = count > 1 ? arguments[1] : "";
    float* x;
    cudaMalloc(&x, 1 << 20);
    if (mode == "launches") {
        const long launches = std::atol(arguments[2]), cycles = std::atol(arguments[3]);
        spin<<<1, 1>>>(1);
        cudaDeviceSynchronize();
        const auto begin = std::chrono::steady_clock::now();
        for (long at = 0; at < launches; ++at) spin<<<1, 1>>>(cycles);
        cudaDeviceSynchronize();
        const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
        std::printf("%.9f\n", seconds.count());
    } else if (mode == "graph") {
        cudaStream_t stream;
        cudaGraph_t graph;
        cudaGraphExec_t executable;
        cudaStreamCreate(&stream);
        cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal);
        one<<<2, 32, 0, stream>>>(x);
        two<<<1, 32, 0, stream>>>(x, 1000);
        cudaStreamEndCapture(stream, &graph);
        cudaGraphInstantiate(&executable, graph, 0);
        for (int at = 0; at < 5; ++at) cudaGraphLaunch(executable, stream);
    } else if (mode == "shapes") {
        const int n = 1 << 20;
        float *a, *b;
        cudaMalloc(&a, n * sizeof(float));
        cudaMalloc(&b, n * sizeof(float));
        for (int at = 0; at < 5; ++at) {
            add<<<1, 1>>>(n, a, b);
            add<<<1, 256>>>(n, a, b);
            add<<<4096, 256>>>(n, a, b);
            add<<<132, 256>>>(n, a, b);
        }
    } else {
        for (int at = 0; at < 1000; ++at) one<<<1, 32>>>(x);
        cudaDeviceSynchronize();
        usleep(700'000);  // the collector flushes meanwhile
        for (int at = 0; at < 10; ++at) one<<<1, 32>>>(x);
        cudaDeviceSynchronize();
        if (mode == "abort") std::abort();
        if (mode == "kill") kill(getpid(), SIGKILL);
        if (mode == "_exit") _exit(3);
    }
    return cudaDeviceSynchronize() == cudaSuccess ? 0 : 1;
}

#include <cstdio>
__global__ void a(float* x) { x[threadIdx.x] += 1; }
__global__ void b(float* x, int n) {
    for (int i = 0; i < n; i++) x[threadIdx.x] *= 1.0001f;
}
template <typename T>
__global__ void c(T* x) {
    x[threadIdx.x] -= 1;
}
int main() {
    float* x;
    cudaMalloc(&x, 4096);
    cudaStream_t s;
    cudaStreamCreate(&s);
    float h[64] = {};
    cudaMemcpyAsync(x, h, 256, cudaMemcpyHostToDevice, s);
    cudaMemsetAsync(x, 0, 1024, s);
    cudaGraph_t g;
    cudaGraphExec_t e;
    cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal);
    a<<<2, 32, 0, s>>>(x);
    b<<<dim3(1, 2), dim3(32, 2), 128, s>>>(x, 1000);
    c<double><<<1, 16, 0, s>>>((double*)x);
    cudaMemsetAsync(x, 0, 512, s);
    cudaStreamEndCapture(s, &g);
    cudaGraphInstantiate(&e, g, 0);
    for (int i = 0; i < 5; i++) cudaGraphLaunch(e, s);
    a<<<2, 32, 0, s>>>(x);
    cudaMemcpy(h, x, 256, cudaMemcpyDeviceToHost);
    cudaError_t bad = cudaMalloc((void**)&x, 1ull << 60);
    printf("bad %d\n", bad);
    cudaStreamSynchronize(s);
    printf("done %d\n", cudaGetLastError());
}

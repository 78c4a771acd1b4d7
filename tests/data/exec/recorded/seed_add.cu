#include <cmath>
#include <cstdio>
__global__ void add(int n, float* x, float* y) {
    for (int i = 0; i < n; i++) y[i] = x[i] + y[i];
}
int main() {
    int N = 1 << 20;
    float *x, *y;
    cudaMallocManaged(&x, N * 4);
    cudaMallocManaged(&y, N * 4);
    for (int i = 0; i < N; i++) {
        x[i] = 1;
        y[i] = 2;
    }
    add<<<1, 1>>>(N, x, y);
    cudaDeviceSynchronize();
    float m = 0;
    for (int i = 0; i < N; i++) m = fmaxf(m, fabsf(y[i] - 3));
    printf("Max error: %g\n", m);
    cudaFree(x);
    cudaFree(y);
}

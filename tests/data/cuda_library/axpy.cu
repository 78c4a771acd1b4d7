// A template with external linkage and a kernel with internal linkage.
template <typename T>
__global__ void axpy(T a, const T* x, T* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] += a * x[i];
}

namespace {
__global__ void fill_kernel(float* y, float value, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = value;
}
}  // namespace

void run_axpy(float* x, float* y, int n) {
    fill_kernel<<<(n + 255) / 256, 256>>>(y, 1.0f, n);
    axpy<float><<<(n + 255) / 256, 256>>>(2.0f, x, y, n);
    axpy<double><<<(n + 255) / 256, 256>>>(2.0, (double*)x, (double*)y, n / 2);
}

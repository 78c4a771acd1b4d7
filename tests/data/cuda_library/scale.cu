// Another unit with a kernel of the same name and internal linkage as in axpy.cu.
namespace {
__global__ void fill_kernel(float* y, float value, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = 2 * value;
}
}  // namespace

namespace mine {
__global__ void scale(float* y, float a, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] *= a;
}
}  // namespace mine

void run_scale(float* y, int n) {
    fill_kernel<<<1, 32>>>(y, 1.0f, n);
    mine::scale<<<1, 32>>>(y, 3.0f, n);
}

#include <nvtx3/nvToolsExt.h>
#include <nvtx3/nvToolsExtCudaRt.h>
#include <unistd.h>

#include <cstdio>
__global__ void a(float* x) { x[threadIdx.x] += 1; }
int main() {
    nvtxRangePushA("before cuda");
    usleep(1000);
    nvtxRangePop();
    nvtxRangeId_t all = nvtxRangeStartA("whole");
    nvtxDomainHandle_t d = nvtxDomainCreateA("mine");
    nvtxStringHandle_t r = nvtxDomainRegisterStringA(d, "registered");
    nvtxEventAttributes_t at = {};
    at.version = NVTX_VERSION;
    at.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
    at.messageType = NVTX_MESSAGE_TYPE_REGISTERED;
    at.message.registered = r;
    float* x;
    cudaMalloc(&x, 4096);
    cudaStream_t s;
    cudaStreamCreate(&s);
    nvtxNameCudaStreamA(s, "copies");
    nvtxNameOsThreadA(gettid(), "main thread");
    for (int i = 0; i < 3; i++) {
        nvtxRangePushA("step");
        nvtxDomainRangePushEx(d, &at);
        a<<<1, 32, 0, s>>>(x);
        usleep(500);
        nvtxDomainRangePop(d);
        cudaStreamSynchronize(s);
        nvtxRangePop();
    }
    nvtxRangeEnd(all);
    nvtxRangePushA("never closed");
    cudaDeviceSynchronize();
    printf("ok\n");
}

// Stands for a CUDA driver in tests: environment variables say what it answers.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char* answer(const char* name, const char* otherwise) {
    const char* found = getenv(name);
    return found ? found : otherwise;
}

__attribute__((constructor)) static void loaded(void) {
    if (!strcmp(answer("FAKE_INIT", "0"), "abort")) abort();
}

int cuInit(unsigned flags) {
    const char* what = answer("FAKE_INIT", "0");
    if (!strcmp(what, "crash")) *(volatile int*)0 = 1;
    if (!strcmp(what, "exit")) exit(0);
    puts("a driver that talks");
    return atoi(what);
}

int cuGetErrorString(int code, const char** text) {
    *text = code == 100 ? "no CUDA-capable device is detected" : "a mismatch";
    return 0;
}

int cuDriverGetVersion(int* version) { return *version = 13000, 0; }
int cuDeviceGetCount(int* count) { return *count = atoi(answer("FAKE_COUNT", "1")), 0; }
int cuDeviceGet(int* device, int index) { return *device = index, 0; }
int cuDeviceGetName(char* name, int size, int device) {
    return strncpy(name, answer("FAKE_NAME", "NVIDIA H200"), size), 0;
}
int cuDeviceTotalMem_v2(size_t* bytes, int device) { return *bytes = 150109880320u, 0; }

int cuDeviceGetAttribute(int* value, int attribute, int device) {
    switch (attribute) {
        case 16: return *value = 132, 0;      // multiprocessors
        case 75: return *value = 9, 0;        // compute capability
        case 76: return *value = 0, 0;
        case 38: return *value = 62914560, 0; // L2
        default: return *value = 1024, 0;
    }
}

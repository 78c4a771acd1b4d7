// Plays a program that uses CUDA, on a machine without: it loads the collector as the driver does, and makes CUPTI's
// records itself. Its argument says what happens; every time and number is one that the tests know.
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>

#include "fake_cupti.h"

namespace {

constexpr std::uint64_t kBegin = 1'700'000'000'000'000'000;

void call(std::uint32_t id, std::uint64_t start, std::uint64_t length, std::uint32_t correlation, std::uint32_t status,
          CUpti_ActivityKind kind = CUPTI_ACTIVITY_KIND_RUNTIME) {
    CUpti_ActivityAPI record = {};
    record.kind = kind;
    record.cbid = id;
    record.start = kBegin + start;
    record.end = record.start + length;
    record.processId = static_cast<std::uint32_t>(getpid());
    record.threadId = static_cast<std::uint32_t>(syscall(SYS_gettid));
    record.correlationId = correlation;
    record.returnValue = status;
    fake_record(&record);
}

void kernel(const char* name, std::uint64_t start, std::uint64_t length, std::uint32_t correlation, int grid,
            std::uint64_t node = 0) {
    CUpti_ActivityKernel9 record = {};
    record.kind = CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL;
    record.start = start ? kBegin + start : 0;
    record.end = start ? record.start + length : 0;
    record.deviceId = 0;
    record.contextId = 1;
    record.streamId = 7;
    record.gridX = grid;
    record.gridY = record.gridZ = 1;
    record.blockX = 256;
    record.blockY = record.blockZ = 1;
    record.registersPerThread = 24;
    record.staticSharedMemory = 16;
    record.dynamicSharedMemory = 32;
    record.correlationId = correlation;
    record.name = name;
    record.graphNodeId = node;
    record.graphId = node ? 5 : 0;
    fake_record(&record);
}

void copy(int kind, int from, int to, std::uint64_t start, std::uint64_t length, std::uint64_t bytes,
          std::uint32_t correlation) {
    CUpti_ActivityMemcpy5 record = {};
    record.kind = CUPTI_ACTIVITY_KIND_MEMCPY;
    record.copyKind = static_cast<std::uint8_t>(kind);
    record.srcKind = static_cast<std::uint8_t>(from);
    record.dstKind = static_cast<std::uint8_t>(to);
    record.bytes = bytes;
    record.start = kBegin + start;
    record.end = record.start + length;
    record.contextId = 1;
    record.streamId = 7;
    record.correlationId = correlation;
    fake_record(&record);
}

void unified_memory(CUpti_ActivityUnifiedMemoryCounterKind kind, std::uint64_t start, std::uint64_t end,
                    std::uint64_t value, std::uint32_t flags) {
    CUpti_ActivityUnifiedMemoryCounter2 record = {};
    record.kind = CUPTI_ACTIVITY_KIND_UNIFIED_MEMORY_COUNTER;
    record.counterKind = kind;
    record.start = kBegin + start;
    record.end = end ? kBegin + end : 0;
    record.value = value;
    record.address = 0x7f0000000000;
    record.processId = static_cast<std::uint32_t>(getpid());
    record.flags = flags;
    fake_record(&record);
}

// A bit of everything, with figures that are worked out in the tests.
void everything() {
    static const char name[] = "NVIDIA Fake";
    CUpti_ActivityDevice4 device = {};
    device.kind = CUPTI_ACTIVITY_KIND_DEVICE;
    device.name = name;
    device.computeCapabilityMajor = 9;
    device.numMultiprocessors = 132;
    device.maxWarpsPerMultiprocessor = 64;
    device.numThreadsPerWarp = 32;
    device.maxRegistersPerMultiprocessor = 65536;
    device.maxSharedMemoryPerMultiprocessor = 233472;
    device.globalMemorySize = 1000;
    fake_record(&device);
    CUpti_ActivityContext context = {};
    context.kind = CUPTI_ACTIVITY_KIND_CONTEXT;
    context.contextId = 1;
    context.nullStreamId = 7;
    fake_record(&context);
    fake_context_created();

    call(3, 1'000, 500, 1, 2);                             // cudaMalloc, out of memory
    call(1, 2'000, 100, 2, 0);                             // cudaLaunchKernel
    call(2, 2'010, 20, 3, 0, CUPTI_ACTIVITY_KIND_DRIVER);  // cuKernelGetName: left out
    call(3, 2'030, 20, 4, 0, CUPTI_ACTIVITY_KIND_DRIVER);  // cuMemcpyHtoD_v2
    kernel("_Z3addiPfS_", 3'000, 700, 2, 1);
    call(1, 4'000, 300, 5, 0);
    kernel("_Z3addiPfS_", 5'000, 900, 5, 2);
    kernel("_Z3addiPfS_", 0, 0, 6, 2);  // without times
    kernel("not mangled", 6'000, 50, 7, 2, 9);
    copy(1, 1, 3, 7'000, 1'000, 4096, 8);
    copy(2, 3, 2, 9'000, 250, 64, 9);
    CUpti_ActivityMemset4 fill = {};
    fill.kind = CUPTI_ACTIVITY_KIND_MEMSET;
    fill.start = kBegin + 10'000;
    fill.end = fill.start + 40;
    fill.bytes = 128;
    fill.contextId = 1;
    fill.streamId = 7;
    fill.correlationId = 10;
    fill.memoryKind = 3;
    fake_record(&fill);
    CUpti_ActivitySynchronization wait = {};
    wait.kind = CUPTI_ACTIVITY_KIND_SYNCHRONIZATION;
    wait.type = CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_STREAM_SYNCHRONIZE;
    wait.start = kBegin + 11'000;
    wait.end = wait.start + 60;
    wait.contextId = 1;
    wait.streamId = 7;
    wait.cudaEventId = 0xFFFFFFFF;
    wait.correlationId = 11;
    fake_record(&wait);
    unified_memory(CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_BYTES_TRANSFER_HTOD, 12'000, 12'500, 65536, 2);
    unified_memory(CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_BYTES_TRANSFER_DTOH, 13'000, 13'100, 4096, 3);
    unified_memory(CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_CPU_PAGE_FAULT_COUNT, 14'000, 0, 0x55d0, 1);
    unified_memory(CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_GPU_PAGE_FAULT, 15'000, 15'900, 3, 1);
    CUpti_ActivityOverhead overhead = {};
    overhead.kind = CUPTI_ACTIVITY_KIND_OVERHEAD;
    overhead.overheadKind = CUPTI_ACTIVITY_OVERHEAD_CUPTI_BUFFER_FLUSH;
    overhead.start = kBegin + 16'000;
    overhead.end = overhead.start + 5;
    fake_record(&overhead);
}

void launches(std::uint32_t count) {
    for (std::uint32_t at = 1; at <= count; ++at) {
        call(1, 1'000ull * at, 100, at, 0);
        kernel("_Z4spinl", 1'000ull * at + 200, 500, at, 1);
    }
}

std::string collector;

int load(const char* function) {
    void* library = dlopen(collector.c_str(), RTLD_NOW);
    auto* begin = library ? reinterpret_cast<int (*)()>(dlsym(library, function)) : nullptr;
    if (!begin) std::fprintf(stderr, "%s\n", dlerror());
    return begin ? begin() : 0;
}

// Another client of CUPTI, as torch.profiler is one.
std::size_t of_client = 0;
void client_requests(std::uint8_t** buffer, std::size_t* size, std::size_t* most) {
    *buffer = static_cast<std::uint8_t*>(std::malloc(*size = 4096));
    *most = 0;
}
void client_completes(CUcontext, std::uint32_t, std::uint8_t* buffer, std::size_t, std::size_t valid) {
    CUpti_Activity* record = nullptr;
    while (cuptiActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS) ++of_client;
    std::free(buffer);
}

int client(const std::string& how) {
    launches(10);
    // Linked to CUPTI, or looked up in the copy that is there, or in one that the client brings.
    void* place = how == "client" ? nullptr : RTLD_DEFAULT;
    if (how == "client with a copy" && !(place = dlopen(std::getenv("OTHER_CUPTI"), RTLD_NOW))) return 22;
    auto* subscribe =
        how == "client" ? &cuptiSubscribe : reinterpret_cast<decltype(&cuptiSubscribe)>(dlsym(place, "cuptiSubscribe"));
    CUpti_SubscriberHandle handle;
    const CUptiResult result = subscribe(&handle, nullptr, nullptr);
    const int left = fake_enabled(), out = fake_buffer_is_out();
    cuptiActivityRegisterCallbacks(client_requests, client_completes);
    cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
    kernel("_Z3addiPfS_", 50'000, 100, 50, 1);
    cuptiActivityFlushAll(1);
    std::printf("subscribe %d, kinds %d, buffers %d, records of the client %zu\n", result, left, out, of_client);
    return result == CUPTI_SUCCESS ? 0 : 1;
}

// What a program's own NVTX holds: a table of functions per module, which the collector fills.
using Function = void (*)();
Function core[16] = {}, domains[16] = {};
Function* core_table[16];
Function* domain_table[16];

int functions_of(int module, Function*** table, unsigned* size) {
    *table = module == 1 ? core_table : module == 5 ? domain_table : nullptr;
    *size = 16;
    return *table != nullptr;
}

struct {
    std::size_t size;
    int (*functions_of)(int module, Function*** table, unsigned* size);
} const callbacks = {sizeof callbacks, functions_of};

const void* table_of(std::uint32_t number) { return number == 1 ? &callbacks : nullptr; }

template <typename F>
F* function(Function pointer) {
    return reinterpret_cast<F*>(pointer);
}

struct Attributes {  // nvtxEventAttributes_t with a registered string
    std::uint16_t version = 3, size = 48;
    std::uint32_t category = 0;
    std::int32_t color_type = 0;
    std::uint32_t color = 0;
    std::int32_t payload_type = 0, reserved = 0;
    std::uint64_t payload = 0;
    std::int32_t message_type = 3;
    const void* message = nullptr;
};

// Ranges that nest, one that does not, one of a domain, one that is never closed; and a name for this thread.
int nvtx() {
    for (int at = 0; at < 16; ++at) {
        core_table[at] = &core[at];
        domain_table[at] = &domains[at];
    }
    void* library = dlopen(collector.c_str(), RTLD_NOW);
    auto* listen =
        reinterpret_cast<int (*)(const void* (*)(std::uint32_t))>(dlsym(library, "InitializeInjectionNvtx2"));
    if (!listen || !listen(table_of)) return 21;
    auto* push = function<int(const char*)>(core[9]);
    auto* push_wide = function<int(const wchar_t*)>(core[10]);
    auto* pop = function<int()>(core[11]);
    const auto free_range = function<std::uint64_t(const char*)>(core[5])("whole");
    function<void(std::uint32_t, const char*)>(core[14])(static_cast<std::uint32_t>(syscall(SYS_gettid)),
                                                         "main thread");
    const int outer = push("outer"), inner = push_wide(L"inner \u03b1");
    Attributes attributes;
    void* domain = function<void*(const char*)>(domains[12])("mine");
    attributes.message = function<void*(void*, const char*)>(domains[10])(domain, "registered");
    function<int(void*, const Attributes*)>(domains[4])(domain, &attributes);
    const int popped = pop();  // the default domain's innermost, though the other one's was opened later
    function<int(void*)>(domains[5])(domain);
    pop();
    function<void(std::uint64_t)>(core[7])(free_range);
    push("never closed");
    std::printf("levels %d %d %d, of nothing %d\n", outer, inner, popped, function<int(void*)>(domains[5])(domain));
    return 0;
}

// Closes all descriptors that it does not know, as daemons do, and opens a file of its own.
int descriptors(const char* path) {
    launches(2);
    for (int at = 3; at < 1024; ++at) close(at);
    const int own = open(path, O_WRONLY | O_CREAT, 0644);
    for (int at = own + 1; at < 1024; ++at) dup2(own, at);
    launches(1);
    usleep(700'000);  // the collector writes meanwhile
    return write(own, "mine", 4) == 4 ? 0 : 1;
}

// Waits for a signal that no thread of its own may get otherwise.
int signals() {
    sigset_t wanted;
    sigemptyset(&wanted);
    sigaddset(&wanted, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &wanted, nullptr);
    load("InitializeInjection");
    launches(1);
    std::thread([] {
        usleep(100'000);
        kill(getpid(), SIGTERM);
    }).detach();
    int got = 0;
    sigwait(&wanted, &got);
    std::printf("got %d\n", got);
    return 0;
}

// Ranges in a destructor of a thread, and of the first thread, which ends before the last one.
struct AtThreadsEnd {
    ~AtThreadsEnd() {
        function<int(const char*)>(core[9])("late");
        function<int()>(core[11])();
    }
};
int destructors() {
    nvtx();
    std::thread([] {
        static thread_local AtThreadsEnd late;
        (void)&late;
        function<int(const char*)>(core[9])("of a thread");
    }).join();
    std::thread([] { usleep(100'000); }).detach();
    pthread_exit(nullptr);
}

}  // namespace

int main(int count, char** arguments) {
    const char* injected = std::getenv("CUDA_INJECTION64_PATH");
    collector = injected ? injected : "";
    const std::string mode = count > 1 ? arguments[1] : "everything";
    if (mode == "nvtx") return nvtx();
    if (mode == "without CUDA") return 7;
    if (mode == "signals") return signals();
    if (mode == "destructors") return destructors();
    if (mode == "fork first" && fork() != 0) wait(nullptr);
    if (!load("InitializeInjection")) return 20;
    if (mode == "everything") everything();
    if (mode == "launches") launches(static_cast<std::uint32_t>(std::atoi(arguments[2])));
    if (mode == "fork first") launches(5);
    if (mode.rfind("client", 0) == 0) return client(mode);
    if (mode == "descriptors") return descriptors(arguments[2]);
    if (mode == "looks elsewhere") {
        void* mathematics = dlopen("libm.so.6", RTLD_NOW);
        return dlsym(mathematics, "cuptiSubscribe") ? 1 : 0;
    }
    if (mode == "forks by itself") {
        launches(1);
        const long child = syscall(SYS_clone, SIGCHLD, nullptr, nullptr, nullptr, nullptr);
        if (child == 0) std::exit(5);
        int status = 0;
        waitpid(static_cast<pid_t>(child), &status, 0);
        return WEXITSTATUS(status) == 5 ? 0 : 1;
    }
    if (mode == "dropped") {
        launches(2);
        fake_drop(41);
    }
    if (mode == "threads") {
        launches(1);
        std::thread([] { call(4, 9'000, 10, 99, 0); }).join();
    }
    const bool ends_early = mode == "kill" || mode == "_exit" || mode == "exec";
    if (ends_early || mode == "fork") {
        launches(3);
        usleep(700'000);  // the collector flushes meanwhile
        launches(2);
    }
    if (mode == "kill") kill(getpid(), SIGKILL);
    if (mode == "_exit") _exit(3);
    if (mode == "exec") execl("/bin/true", "true", nullptr);
    if (mode == "fork") {
        if (fork() == 0) std::exit(5);
        int status = 0;
        wait(&status);
        return WEXITSTATUS(status) == 5 ? 0 : 1;
    }
    return 0;
}

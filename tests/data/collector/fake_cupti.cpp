// A CUPTI for machines without a GPU: it keeps the records that a program hands it, in buffers that its one client
// gives it, and serves one client at a time, as the real one does.
#include "fake_cupti.h"

#include <time.h>

#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>

namespace {

CUpti_BuffersCallbackRequestFunc request = nullptr;
CUpti_BuffersCallbackCompleteFunc complete = nullptr;
std::set<CUpti_ActivityKind> enabled;
// A program records while the collector's own thread flushes.
std::mutex guard;
std::uint8_t* buffer = nullptr;
std::size_t capacity = 0, used = 0, dropped = 0;
CUpti_CallbackFunc subscriber = nullptr;
bool subscribed = false, configured = false;

struct Filled {
    std::uint8_t* start = nullptr;
    std::size_t capacity = 0, used = 0;
};

// The caller holds the lock.
Filled take_buffer() {
    const Filled filled = {buffer, capacity, used};
    buffer = nullptr;
    used = 0;
    return filled;
}

// The caller must not hold the lock: the client calls back.
void hand_over(const Filled& filled) {
    if (filled.start) complete(nullptr, 0, filled.start, filled.capacity, filled.used);
}

std::size_t size_of(CUpti_ActivityKind kind) {
    switch (kind) {
        case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: return sizeof(CUpti_ActivityKernel9);
        case CUPTI_ACTIVITY_KIND_MEMCPY: return sizeof(CUpti_ActivityMemcpy5);
        case CUPTI_ACTIVITY_KIND_MEMCPY2: return sizeof(CUpti_ActivityMemcpyPtoP4);
        case CUPTI_ACTIVITY_KIND_MEMSET: return sizeof(CUpti_ActivityMemset4);
        case CUPTI_ACTIVITY_KIND_RUNTIME:
        case CUPTI_ACTIVITY_KIND_DRIVER: return sizeof(CUpti_ActivityAPI);
        case CUPTI_ACTIVITY_KIND_SYNCHRONIZATION: return sizeof(CUpti_ActivitySynchronization);
        case CUPTI_ACTIVITY_KIND_UNIFIED_MEMORY_COUNTER: return sizeof(CUpti_ActivityUnifiedMemoryCounter2);
        case CUPTI_ACTIVITY_KIND_DEVICE: return sizeof(CUpti_ActivityDevice4);
        case CUPTI_ACTIVITY_KIND_CONTEXT: return sizeof(CUpti_ActivityContext);
        case CUPTI_ACTIVITY_KIND_OVERHEAD: return sizeof(CUpti_ActivityOverhead);
        default: return 0;
    }
}

int number(const char* name) {
    const char* value = std::getenv(name);
    return value ? std::atoi(value) : 0;
}

}  // namespace

extern "C" {

void fake_record(const void* record) {
    const auto kind = static_cast<const CUpti_Activity*>(record)->kind;
    const std::size_t size = size_of(kind);
    Filled full;
    {
        std::lock_guard lock(guard);
        if (!enabled.count(kind)) return;
        if (buffer && used + size > capacity) full = take_buffer();
        std::size_t most = 0;
        if (!buffer) request(&buffer, &capacity, &most);
        if (buffer) {
            std::memcpy(buffer + used, record, size);
            used += size;
        } else {
            ++dropped;
        }
    }
    hand_over(full);
}

void fake_context_created() {
    if (subscribed && subscriber)
        subscriber(nullptr, CUPTI_CB_DOMAIN_RESOURCE, CUPTI_CBID_RESOURCE_CONTEXT_CREATED, nullptr);
}

void fake_drop(std::size_t records) {
    std::lock_guard lock(guard);
    dropped += records;
}
int fake_enabled() {
    std::lock_guard lock(guard);
    return static_cast<int>(enabled.size());
}
int fake_buffer_is_out() {
    std::lock_guard lock(guard);
    return buffer != nullptr;
}

CUptiResult cuptiSubscribe(CUpti_SubscriberHandle* handle, CUpti_CallbackFunc callback, void*) {
    static bool before = false;
    const bool later = before;
    before = true;
    if (number("FAKE_TAKEN") || (later && number("FAKE_REFUSES_LATER")) || subscribed)
        return CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED;
    subscribed = true;
    subscriber = callback;
    *handle = reinterpret_cast<CUpti_SubscriberHandle>(&subscribed);
    return CUPTI_SUCCESS;
}
CUptiResult cuptiUnsubscribe(CUpti_SubscriberHandle) {
    subscribed = false;
    return CUPTI_SUCCESS;
}
CUptiResult cuptiEnableCallback(std::uint32_t, CUpti_SubscriberHandle, CUpti_CallbackDomain, CUpti_CallbackId) {
    return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc requested,
                                           CUpti_BuffersCallbackCompleteFunc completed) {
    request = requested;
    complete = completed;
    return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityEnable(CUpti_ActivityKind kind) {
    if (static_cast<int>(kind) == number("FAKE_REFUSED_KIND")) return CUPTI_ERROR_INSUFFICIENT_PRIVILEGES;
    std::lock_guard lock(guard);
    enabled.insert(kind);
    return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityDisable(CUpti_ActivityKind kind) {
    std::lock_guard lock(guard);
    enabled.erase(kind);
    return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityFlushAll(std::uint32_t) {
    Filled filled;
    {
        std::lock_guard lock(guard);
        filled = take_buffer();
    }
    hand_over(filled);
    return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityGetNextRecord(std::uint8_t* from, std::size_t valid, CUpti_Activity** record) {
    std::uint8_t* next = *record ? reinterpret_cast<std::uint8_t*>(*record) + size_of((*record)->kind) : from;
    if (next >= from + valid) return CUPTI_ERROR_MAX_LIMIT_REACHED;
    *record = reinterpret_cast<CUpti_Activity*>(next);
    return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityGetNumDroppedRecords(CUcontext, std::uint32_t, std::size_t* count) {
    std::lock_guard lock(guard);
    *count = dropped;
    dropped = 0;
    return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityConfigureUnifiedMemoryCounter(CUpti_ActivityUnifiedMemoryCounterConfig*, std::uint32_t) {
    configured = true;
    return CUPTI_SUCCESS;
}
CUptiResult cuptiGetCallbackName(CUpti_CallbackDomain domain, std::uint32_t id, const char** name) {
    static const char* runtime[] = {"cudaLaunchKernel_v7000", "cudaMemcpy_v3020", "cudaMalloc_v3020",
                                    "cudaDeviceSynchronize_v3020"};
    static const char* driver[] = {"cuInit", "cuKernelGetName", "cuMemcpyHtoD_v2"};
    const std::uint32_t most = domain == CUPTI_CB_DOMAIN_DRIVER_API ? 3 : 4;
    if (id < 1 || id > most) return CUPTI_ERROR_INVALID_PARAMETER;
    *name = domain == CUPTI_CB_DOMAIN_DRIVER_API ? driver[id - 1] : runtime[id - 1];
    return CUPTI_SUCCESS;
}
CUptiResult cuptiGetResultString(CUptiResult result, const char** text) {
    *text = result == CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED ? "CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED"
                                                                     : "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES";
    return CUPTI_SUCCESS;
}
CUptiResult cuptiGetTimestamp(std::uint64_t* time) {
    timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    *time = static_cast<std::uint64_t>(now.tv_sec) * 1000000000u + static_cast<std::uint64_t>(now.tv_nsec) -
            static_cast<std::uint64_t>(number("FAKE_CLOCK_BEHIND_S")) * 1000000000u;
    return CUPTI_SUCCESS;
}
CUptiResult cuptiGetVersion(std::uint32_t* version) {
    *version = number("FAKE_VERSION") ? static_cast<std::uint32_t>(number("FAKE_VERSION")) : 130001;
    return CUPTI_SUCCESS;
}
CUptiResult cuptiSetThreadIdType(CUpti_ActivityThreadIdType) { return CUPTI_SUCCESS; }
CUptiResult cuptiGetStreamIdEx(CUcontext, CUstream, std::uint8_t, std::uint32_t* id) {
    *id = 7;
    return CUPTI_SUCCESS;
}
CUptiResult cuptiFinalize() { return CUPTI_SUCCESS; }
}

// Records what a program does with CUDA: loaded into it by the driver, which calls `InitializeInjection` in cuInit
// (CUDA_INJECTION64_PATH). See tables.h for the file that it writes.
//
// Three rules. The program must do what it would do without us: nothing here calls the driver before it is ready,
// prints, throws or waits for long. What was recorded must survive the process: a thread asks CUPTI for it several
// times a second, and it is written at once. What was lost must be said: dropped records, failures, and since when
// nothing was recorded, because another client of CUPTI came.
#include <cxxabi.h>
#include <execinfo.h>
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <mutex>
#include <new>
#include <set>
#include <string>
#include <system_error>
#include <thread>
#include <unordered_map>
#include <vector>

#include "cupti_api.h"
#include "file.h"
#include "nvtx.h"
#include "other_clients.h"
#include "signals.h"

// Where the driver looks for it.
extern "C" __attribute__((visibility("default"))) int InitializeInjection();
// Where a program's NVTX looks for it (NVTX_INJECTION64_PATH), which may be long before or never.
extern "C" __attribute__((visibility("default"))) int InitializeInjectionNvtx2(opscope::nvtx::ExportTable tables);

namespace opscope {
namespace {

// Together the 64 MiB that the collector may take, with what CUPTI has itself.
constexpr std::size_t kBufferBytes = 512 << 10;  // each thread of the program has one in use
constexpr std::size_t kMostBuffers = 64;
constexpr std::uint32_t kMayRefuse = 27;  // CUPTI 12.9: earlier ones crash if they get no buffer
constexpr std::size_t kBufferAlignment = 8;
constexpr auto kFlushEvery = std::chrono::milliseconds(250);
constexpr auto kPatience = std::chrono::seconds(5);
constexpr u8 kWriteEveryNs = 250'000'000;
constexpr std::size_t kMostWaiting = 1 << 16;
constexpr std::size_t kMostRemembered = 1 << 16;  // ways of launching
constexpr u2 kDriverCall = 0x8000;                // added to the number of a call of the driver's API
constexpr std::size_t kLongestText = 16384;

// What may happen to the collector; the reader knows these numbers.
enum class Happened : u4 { started = 1, finished = 2, failed = 3, stepped_aside = 4, refused = 5, hindered = 6 };

// What is recorded. What a device or driver does not offer is left out, and said.
constexpr CUpti_ActivityKind kKinds[] = {
    CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY,
    CUPTI_ACTIVITY_KIND_MEMCPY2,           CUPTI_ACTIVITY_KIND_MEMSET,
    CUPTI_ACTIVITY_KIND_RUNTIME,           CUPTI_ACTIVITY_KIND_DRIVER,
    CUPTI_ACTIVITY_KIND_SYNCHRONIZATION,   CUPTI_ACTIVITY_KIND_DEVICE,
    CUPTI_ACTIVITY_KIND_CONTEXT,           CUPTI_ACTIVITY_KIND_OVERHEAD,
};

// Queries that CUDA's runtime makes at every launch while it is watched, which cost more than they say, and one that is
// made here, for names of streams.
constexpr const char* kLeftOut[] = {"cuKernelGetName", "cuKernelGetAttribute", "cuDevicePrimaryCtxGetState",
                                    "cuCtxGetCurrent", "cuStreamGetCtx"};

// Of which process this is a part, among those of a job.
constexpr const char* kVariables[] = {
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "PMI_RANK",
    "PMI_SIZE",
    "PMIX_RANK",
    "MPI_LOCALRANKID",
    "SLURM_PROCID",
    "SLURM_LOCALID",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_NTASKS",
    "CUDA_VISIBLE_DEVICES",
};

u8 now(clockid_t clock) {
    timespec time;
    clock_gettime(clock, &time);
    return static_cast<u8>(time.tv_sec) * 1000000000u + static_cast<u8>(time.tv_nsec);
}

std::string contentOf(const char* path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::string linked(const char* path) {
    char target[4096];
    const ssize_t size = readlink(path, target, sizeof target);
    return size > 0 ? std::string(target, static_cast<std::size_t>(size)) : std::string();
}

std::string hexadecimal(const CUuuid& uuid) {
    std::string text;
    char digits[3];
    for (const char byte : uuid.bytes) {
        std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned char>(byte));
        text += digits;
    }
    return text;
}

// The buffers that CUPTI fills: a fixed number, used again and again.
class Buffers {
public:
    // Returns none where all are in use and it may: CUPTI then drops records, and counts them.
    std::uint8_t* take(bool mayRefuse) {
        std::lock_guard lock(mutex_);
        std::uint8_t* buffer = nullptr;
        if (!free_.empty()) {
            buffer = free_.back();
            free_.pop_back();
        } else if (made_ < kMostBuffers || !mayRefuse) {
            buffer = static_cast<std::uint8_t*>(std::aligned_alloc(kBufferAlignment, kBufferBytes));
            made_ += buffer ? 1 : 0;
        }
        taken_ += buffer ? 1 : 0;
        return buffer;
    }

    void giveBack(std::uint8_t* buffer) {
        std::lock_guard lock(mutex_);
        free_.push_back(buffer);
        --taken_;
    }

    u4 taken() {
        std::lock_guard lock(mutex_);
        return taken_;
    }

private:
    std::mutex mutex_;
    std::vector<std::uint8_t*> free_;
    std::size_t made_ = 0;
    u4 taken_ = 0;
};

class Collector {
public:
    // Returns this process's collector, which is made when it is first needed; none where nothing is to be recorded.
    static Collector* made() {
        std::lock_guard lock(making_);
        const char* folder = std::getenv("OPSCOPE_CUDA_FOLDER");
        if (the || !folder) return the;
        const std::string name = std::to_string(getpid()) + "-" + std::to_string(now(CLOCK_REALTIME));
        auto* collector = new Collector(std::string(folder) + "/process-" + name + ".cudarec");
        if (!collector->file_.isOpen()) return nullptr;
        the = collector;  // never deleted: CUPTI and NVTX may call until the very end
        static bool known = false;
        if (!known) {
            std::atexit([] {
                if (the) the.load()->finish();
            });
            // A child process that becomes no other program: the file is its parent's, and locks are as they were.
            pthread_atfork(nullptr, nullptr, [] {
                if (the) the.load()->file_.abandon();
                the = nullptr;
                new (&making_) std::mutex;
                OtherClients::forget();
            });
        }
        known = true;
        collector->describe();
        return collector;
    }

    // Begins to record what CUDA does; says so, or why it cannot.
    void record() {
        if (cupti_.isLoaded) return;
        if (const std::string failure = cupti_.load(std::getenv("OPSCOPE_CUPTI")); !failure.empty())
            return say(Happened::failed, failure);
        cupti_.cuptiGetVersion(&cupti_version_);
        {
            std::lock_guard lock(writing_);
            fact("cupti", std::to_string(cupti_version_));
            fact("cupti library", cupti_.path);
            file_.write();
        }
        OtherClients::use(cupti_.library);
        OtherClients::watch(kHear);
        if (calledByCupti()) return say(Happened::refused, "it is what initialises CUDA");
        start();
    }

    void beginRange(u8 number, nvtx::Style style, const std::string& name, const std::string& domain) {
        std::lock_guard lock(writing_);
        const u8 time = now(CLOCK_REALTIME);
        file_.add(Range{time, number, threadOf(static_cast<u4>(syscall(SYS_gettid))), file_.string(name),
                        file_.string(domain), static_cast<u1>(style)});
        writeSometimes(time);
    }

    void endRange(u8 number) {
        const u8 time = now(CLOCK_REALTIME);
        std::lock_guard lock(writing_);
        file_.add(RangeEnd{time, number});
        writeSometimes(time);
    }

    void name(CUpti_ActivityObjectKind kind, u4 object, const std::string& name) {
        std::lock_guard lock(writing_);
        file_.add(Name{static_cast<u4>(kind), object, file_.string(name)});
    }

    void nameStream(void* handle, const std::string& given) {
        using ContextOf = CUresult (*)(CUstream, CUcontext*);
        const auto contextOf = reinterpret_cast<ContextOf>(ofDriver("cuStreamGetCtx"));
        CUcontext context = nullptr;
        std::uint32_t number = 0;
        auto* stream = static_cast<CUstream>(handle);
        if (cupti_.isLoaded && contextOf && contextOf(stream, &context) == CUDA_SUCCESS &&
            cupti_.cuptiGetStreamIdEx(context, stream, 0, &number) == CUPTI_SUCCESS)
            name(CUPTI_ACTIVITY_OBJECT_STREAM, number, given);
    }

    static inline std::atomic<Collector*> the{nullptr};

private:
    explicit Collector(const std::string& path) : file_(path) {}

    // Writes what is known of the process before anything is recorded.
    void describe() {
        std::lock_guard lock(writing_);
        fact("process", std::to_string(getpid()));
        fact("parent", std::to_string(getppid()));
        fact("executable", linked("/proc/self/exe"));
        char host[256] = {};
        if (gethostname(host, sizeof host - 1) == 0) fact("host", host);
        for (const char* variable : kVariables)
            if (const char* value = std::getenv(variable)) fact(std::string("environment ") + variable, value);
        addClock();
        file_.write();
    }

    void start() {
        CUptiResult result = cupti_.cuptiSubscribe(&subscriber_, &Collector::heard, nullptr);
        if (result == CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED)
            return say(Happened::refused, cupti_.text(result));
        if (result != CUPTI_SUCCESS) return say(Happened::failed, "anything of CUDA: " + cupti_.text(result));
        cupti_.cuptiSetThreadIdType(CUPTI_ACTIVITY_THREAD_ID_TYPE_SYSTEM);
        result = cupti_.cuptiActivityRegisterCallbacks(&Collector::requested, &Collector::completed);
        if (result != CUPTI_SUCCESS) return giveUp("callbacks: " + cupti_.text(result));
        for (const CUpti_ActivityKind kind : kKinds) {
            result = cupti_.cuptiActivityEnable(kind);
            if (result == CUPTI_SUCCESS) continue;
            const std::string what = "activities of kind " + std::to_string(kind) + ": " + cupti_.text(result);
            if (kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) return giveUp(what);
            say(Happened::failed, what);
        }
        leaveOutQueries();
        // Unified memory is configured per device, which needs a context: earlier it succeeds, and records nothing.
        cupti_.cuptiEnableCallback(1, subscriber_, CUPTI_CB_DOMAIN_RESOURCE, CUPTI_CBID_RESOURCE_CONTEXT_CREATED);
        recording_ = true;
        say(Happened::started, "");
        startFlushing();
    }

    // Without kernels the rest is worth nothing, and another client may do better.
    void giveUp(const std::string& why) {
        cupti_.cuptiUnsubscribe(subscriber_);
        say(Happened::failed, why);
    }

    // Ranges of NVTX alone need no thread, which would keep a process alive whose first thread has ended.
    void startFlushing() {
        const SignalsBlocked blocked;  // the thread inherits that: signals are for the program's own
        flushes_ = true;
        try {
            std::thread(&Collector::flushRegularly, this).detach();
        } catch (const std::system_error& error) {
            flushes_ = false;
            say(Happened::failed,
                std::string("what is in unfinished buffers, as no thread can be made that writes it: ") + error.what());
        }
    }

    void leaveOutQueries() {
        const char* name = nullptr;
        for (CUpti_CallbackId id = 1;
             cupti_.cuptiGetCallbackName(CUPTI_CB_DOMAIN_DRIVER_API, id, &name) == CUPTI_SUCCESS; ++id)
            for (const char* query : kLeftOut)
                if (name && std::strcmp(name, query) == 0) {
                    left_out_.insert(static_cast<u2>(id | kDriverCall));
                    if (cupti_.enableDriverApi) cupti_.enableDriverApi(id, 0);
                }
    }

    // The process ends, and says so. It may end in a handler of a signal, or while a library is loaded: what a thread
    // holds then is never given back, so nothing here waits for long.
    void finish() {
        if (getpid() != process_) return;
        {
            std::lock_guard lock(ending_);
            ends_ = true;
        }
        ended_.notify_all();
        std::unique_lock flushing(making_way_, kPatience);
        if (!flushing || !writing_.try_lock_for(kPatience)) return;
        writing_.unlock();
        if (recording_.exchange(false)) flush(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
        say(Happened::finished, "");
    }

    // Another client of CUPTI comes: recording ends. It would get our buffers back, so none may be out then.
    static void makeWay(const char* library) {
        Collector* collector = the;
        if (!collector) return;
        std::lock_guard lock(collector->making_way_);  // a second one waits until the first one has its way
        if (!collector->recording_.exchange(false)) return;
        CuptiApi& cupti = collector->cupti_;
        for (const CUpti_ActivityKind kind : kKinds) cupti.cuptiActivityDisable(kind);
        if (collector->unified_memory_) cupti.cuptiActivityDisable(CUPTI_ACTIVITY_KIND_UNIFIED_MEMORY_COUNTER);
        collector->flush(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
        cupti.cuptiUnsubscribe(collector->subscriber_);
        collector->made_way_ = true;
        collector->say(Happened::stepped_aside, library);
    }

    // It was refused all the same, which it would perhaps not have been without us.
    static void hinder(const char* library, long result) {
        Collector* collector = the;
        if (collector && collector->made_way_)
            collector->say(Happened::hindered, library + (" " + std::to_string(result)));
    }

    static constexpr OtherClients::Hear kHear = {&Collector::makeWay, &Collector::hinder};

    // Whether CUPTI itself initialises CUDA, for a client that was there before us.
    static bool calledByCupti() {
        void* stack[64];
        return OtherClients::within(stack, backtrace(stack, static_cast<int>(std::size(stack))));
    }

    void say(Happened happened, const std::string& text) {
        std::lock_guard lock(writing_);
        file_.add(Event{now(CLOCK_REALTIME), static_cast<u4>(happened), file_.string(text)});
        addClock();
        file_.write();
    }

    static void CUPTIAPI requested(std::uint8_t** buffer, std::size_t* size, std::size_t* most) {
        Collector* collector = the;
        *buffer = collector ? collector->buffers_.take(collector->cupti_version_ >= kMayRefuse) : nullptr;
        *size = *buffer ? kBufferBytes : 0;
        *most = 0;
    }

    static void CUPTIAPI completed(CUcontext context, std::uint32_t stream, std::uint8_t* buffer, std::size_t,
                                   std::size_t valid) {
        const SignalsBlocked blocked;
        if (Collector* collector = the) {
            collector->take(context, stream, buffer, valid);
            collector->buffers_.giveBack(buffer);
        }
    }

    static void CUPTIAPI heard(void*, CUpti_CallbackDomain domain, CUpti_CallbackId id, const void*) {
        Collector* collector = the;
        if (collector && domain == CUPTI_CB_DOMAIN_RESOURCE && id == CUPTI_CBID_RESOURCE_CONTEXT_CREATED)
            collector->recordUnifiedMemory();
    }

    void fact(const std::string& key, const std::string& value) {
        file_.add(Facts{file_.string(key), file_.string(value.substr(0, kLongestText))});
    }

    void addClock() {
        uint64_t cupti = 0;
        if (recording_) cupti_.cuptiGetTimestamp(&cupti);  // later, another client may have set its own clock
        file_.add(Clock{cupti, now(CLOCK_REALTIME), now(CLOCK_MONOTONIC)});
    }

    void flushRegularly() {
        std::unique_lock lock(ending_);
        while (!ended_.wait_for(lock, kFlushEvery, [this] { return ends_; })) {
            lock.unlock();
            if (recording_) {
                OtherClients::watch(kHear);
                std::lock_guard making_way(making_way_);
                if (recording_) flush(0);
            } else {
                std::lock_guard writing(writing_);
                file_.write();
            }
            lock.lock();
        }
    }

    // Writes ranges now and then where no thread does; the caller holds the lock.
    void writeSometimes(u8 time) {
        if (flushes_ || (file_.waiting() < kMostWaiting && time - written_ < kWriteEveryNs)) return;
        written_ = time;
        file_.write();
    }

    void flush(std::uint32_t how) {
        const u8 time = now(CLOCK_REALTIME);
        cupti_.cuptiActivityFlushAll(how);  // comes back to `completed`, so no lock may be held here
        const u4 kept = buffers_.taken();
        std::lock_guard lock(writing_);
        file_.add(Flush{time, kept});
        addClock();
        file_.write();
    }

    static void* ofDriver(const char* function) {
        void* driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
        return driver ? dlsym(driver, function) : nullptr;
    }

    void recordUnifiedMemory() {
        if (unified_memory_.exchange(true)) return;
        using Count = CUresult (*)(int*);
        const auto count = reinterpret_cast<Count>(ofDriver("cuDeviceGetCount"));
        int devices = 1;
        if (count && count(&devices) != CUDA_SUCCESS) devices = 1;
        constexpr CUpti_ActivityUnifiedMemoryCounterKind kinds[] = {
            CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_BYTES_TRANSFER_HTOD,
            CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_BYTES_TRANSFER_DTOH,
            CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_BYTES_TRANSFER_DTOD,
            CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_CPU_PAGE_FAULT_COUNT,
            CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_GPU_PAGE_FAULT,
            CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_THRASHING,
            CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_THROTTLING,
            CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_REMOTE_MAP,
        };
        std::vector<CUpti_ActivityUnifiedMemoryCounterConfig> wanted;
        for (int device = 0; device < devices; ++device)
            for (const auto kind : kinds) {
                CUpti_ActivityUnifiedMemoryCounterConfig one = {};
                one.scope = CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_SCOPE_PROCESS_SINGLE_DEVICE;
                one.kind = kind;
                one.deviceId = static_cast<std::uint32_t>(device);
                one.enable = 1;
                wanted.push_back(one);
            }
        CUptiResult result =
            cupti_.cuptiActivityConfigureUnifiedMemoryCounter(wanted.data(), static_cast<std::uint32_t>(wanted.size()));
        if (result == CUPTI_SUCCESS) result = cupti_.cuptiActivityEnable(CUPTI_ACTIVITY_KIND_UNIFIED_MEMORY_COUNTER);
        if (result != CUPTI_SUCCESS) say(Happened::failed, "unified memory: " + cupti_.text(result));
    }

    void take(CUcontext context, std::uint32_t stream, std::uint8_t* buffer, std::size_t valid) {
        std::size_t dropped = 0;
        cupti_.cuptiActivityGetNumDroppedRecords(context, stream, &dropped);
        std::lock_guard lock(writing_);
        CUpti_Activity* record = nullptr;
        while (valid && cupti_.cuptiActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS) add(*record);
        if (dropped) file_.add(Dropped{dropped});
        file_.write();
    }

    // A record's struct is that of the oldest CUPTI that is supported (12.0): later ones have their fields first.
    void add(const CUpti_Activity& record) {
        switch (record.kind) {
            case CUPTI_ACTIVITY_KIND_KERNEL:
            case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL:
                return addKernel(reinterpret_cast<const CUpti_ActivityKernel9&>(record));
            case CUPTI_ACTIVITY_KIND_MEMCPY: return addCopy(reinterpret_cast<const CUpti_ActivityMemcpy5&>(record));
            case CUPTI_ACTIVITY_KIND_MEMCPY2:
                return addCopy(reinterpret_cast<const CUpti_ActivityMemcpyPtoP4&>(record));
            case CUPTI_ACTIVITY_KIND_MEMSET: return addFill(reinterpret_cast<const CUpti_ActivityMemset4&>(record));
            case CUPTI_ACTIVITY_KIND_RUNTIME:
            case CUPTI_ACTIVITY_KIND_DRIVER: return addCall(reinterpret_cast<const CUpti_ActivityAPI&>(record));
            case CUPTI_ACTIVITY_KIND_UNIFIED_MEMORY_COUNTER:
                return addUnifiedMemory(reinterpret_cast<const CUpti_ActivityUnifiedMemoryCounter2&>(record));
            case CUPTI_ACTIVITY_KIND_SYNCHRONIZATION:
                return addSynchronization(reinterpret_cast<const CUpti_ActivitySynchronization&>(record));
            case CUPTI_ACTIVITY_KIND_DEVICE: return addDevice(reinterpret_cast<const CUpti_ActivityDevice4&>(record));
            case CUPTI_ACTIVITY_KIND_CONTEXT: {
                const auto& context = reinterpret_cast<const CUpti_ActivityContext&>(record);
                return file_.add(Context{context.contextId, context.deviceId, context.nullStreamId});
            }
            case CUPTI_ACTIVITY_KIND_OVERHEAD: {
                const auto& overhead = reinterpret_cast<const CUpti_ActivityOverhead&>(record);
                return file_.add(
                    Overhead{overhead.start, overhead.end - overhead.start, static_cast<u4>(overhead.overheadKind)});
            }
            default: return;
        }
    }

    void addKernel(const CUpti_ActivityKernel9& kernel) {
        const u4 launch = launchOf(kernel);
        const u8 duration = kernel.end - kernel.start;
        if (kernel.graphNodeId)
            file_.add(Node{kernel.start, duration, kernel.correlationId, launch, kernel.graphId, kernel.graphNodeId});
        else
            file_.add(Kernel{kernel.start, duration, kernel.correlationId, launch});
    }

    // Returns the number of how a kernel was launched, which is written where it is new.
    u4 launchOf(const CUpti_ActivityKernel9& kernel) {
        const std::string_view mangled = kernel.name ? kernel.name : "";
        Launch launch = {0,
                         file_.string(mangled),
                         0,
                         kernel.deviceId,
                         kernel.contextId,
                         kernel.streamId,
                         kernel.gridX,
                         kernel.gridY,
                         kernel.gridZ,
                         kernel.blockX,
                         kernel.blockY,
                         kernel.blockZ,
                         kernel.registersPerThread,
                         kernel.staticSharedMemory,
                         kernel.dynamicSharedMemory};
        const std::string_view bytes(reinterpret_cast<const char*>(&launch), sizeof launch);
        if (launches_.size() >= kMostRemembered) launches_.clear();  // those that come again are written again
        auto [found, is_new] = launches_.try_emplace(std::string(bytes), next_launch_);
        if (is_new) {
            launch.number = next_launch_++;
            launch.name = file_.string(demangled(mangled));
            file_.add(launch);
        }
        return found->second;
    }

    static std::string demangled(std::string_view mangled) {
        int status = 0;
        char* text = abi::__cxa_demangle(std::string(mangled).c_str(), nullptr, nullptr, &status);
        std::string name(text && status == 0 ? text : mangled);
        std::free(text);
        return name;
    }

    void addCopy(const CUpti_ActivityMemcpy5& copy) {
        file_.add(Copy{copy.start, copy.end - copy.start, copy.bytes, copy.correlationId, copy.deviceId, copy.contextId,
                       copy.streamId, copy.copyKind, copy.srcKind, copy.dstKind, copy.graphId, copy.graphNodeId});
    }

    void addCopy(const CUpti_ActivityMemcpyPtoP4& copy) {
        file_.add(Copy{copy.start, copy.end - copy.start, copy.bytes, copy.correlationId, copy.deviceId, copy.contextId,
                       copy.streamId, copy.copyKind, copy.srcKind, copy.dstKind, copy.graphId, copy.graphNodeId});
    }

    void addFill(const CUpti_ActivityMemset4& fill) {
        file_.add(Fill{fill.start, fill.end - fill.start, fill.bytes, fill.correlationId, fill.deviceId, fill.contextId,
                       fill.streamId, static_cast<u1>(fill.memoryKind), fill.graphId, fill.graphNodeId});
    }

    void addCall(const CUpti_ActivityAPI& call) {
        const bool driver = call.kind == CUPTI_ACTIVITY_KIND_DRIVER;
        const u2 number = static_cast<u2>(call.cbid | (driver ? kDriverCall : 0));
        if (left_out_.count(number)) return;
        if (known_calls_.insert(number).second) {
            const char* name = nullptr;
            const auto domain = driver ? CUPTI_CB_DOMAIN_DRIVER_API : CUPTI_CB_DOMAIN_RUNTIME_API;
            const bool found = cupti_.cuptiGetCallbackName(domain, call.cbid, &name) == CUPTI_SUCCESS && name;
            file_.add(Call{number, file_.string(found ? name : "call " + std::to_string(call.cbid))});
        }
        file_.add(Api{call.start, call.end - call.start, call.correlationId, threadOf(call.threadId), number});
        if (call.returnValue) file_.add(Failure{call.correlationId, number, call.returnValue});
    }

    // Returns the number of a thread, whose name is looked up while it lives.
    u4 threadOf(u4 id) {
        auto [found, is_new] = threads_.try_emplace(id, static_cast<u4>(threads_.size()));
        if (is_new) {
            std::string name = contentOf(("/proc/self/task/" + std::to_string(id) + "/comm").c_str());
            if (!name.empty() && name.back() == '\n') name.pop_back();
            file_.add(Thread{found->second, id, file_.string(name)});
        }
        return found->second;
    }

    void addUnifiedMemory(const CUpti_ActivityUnifiedMemoryCounter2& one) {
        file_.add(UnifiedMemory{one.start, one.end, one.address, one.value, static_cast<u4>(one.counterKind), one.srcId,
                                one.dstId, one.streamId, one.flags, one.processId});
    }

    void addSynchronization(const CUpti_ActivitySynchronization& one) {
        file_.add(Synchronization{one.start, one.end - one.start, one.correlationId, one.contextId, one.streamId,
                                  one.cudaEventId, static_cast<u4>(one.type)});
    }

    void addDevice(const CUpti_ActivityDevice4& device) {
        file_.add(Device{device.id, file_.string(device.name ? device.name : ""),
                         file_.string(hexadecimal(device.uuid)), device.computeCapabilityMajor,
                         device.computeCapabilityMinor, device.numMultiprocessors, device.maxWarpsPerMultiprocessor,
                         device.numThreadsPerWarp, device.maxRegistersPerMultiprocessor,
                         device.maxSharedMemoryPerMultiprocessor, device.globalMemorySize});
    }

    CuptiApi cupti_;
    std::uint32_t cupti_version_ = 0;
    CUpti_SubscriberHandle subscriber_ = nullptr;
    Buffers buffers_;
    std::atomic<bool> recording_{false}, unified_memory_{false}, made_way_{false};
    const pid_t process_ = getpid();
    static inline std::mutex making_;
    std::timed_mutex making_way_;  // whoever flushes, or ends recording
    std::mutex ending_;
    std::condition_variable ended_;
    bool ends_ = false;
    std::atomic<bool> flushes_{false};  // whether the thread is there

    std::timed_mutex writing_;  // holds what follows
    File file_;
    u8 written_ = 0;  // when that was done without a thread
    std::unordered_map<std::string, u4> launches_;
    u4 next_launch_ = 0;
    std::unordered_map<u4, u4> threads_;
    std::set<u2> known_calls_, left_out_;
};

constexpr nvtx::Listener kListener = {
    [](u8 number, nvtx::Style style, const std::string& name, const std::string& domain) {
        if (Collector* collector = Collector::the) collector->beginRange(number, style, name, domain);
    },
    [](u8 number) {
        if (Collector* collector = Collector::the) collector->endRange(number);
    },
    [](u4 id, const std::string& name) {
        if (Collector* collector = Collector::the) collector->name(CUPTI_ACTIVITY_OBJECT_THREAD, id, name);
    },
    [](void* stream, const std::string& name) {
        if (Collector* collector = Collector::the) collector->nameStream(stream, name);
    },
    [](u4 device, const std::string& name) {
        if (Collector* collector = Collector::the) collector->name(CUPTI_ACTIVITY_OBJECT_DEVICE, device, name);
    },
};

}  // namespace
}  // namespace opscope

// Whatever goes wrong, the program goes on as if we were not there.
int InitializeInjection() {
    try {
        if (opscope::Collector* collector = opscope::Collector::made()) collector->record();
    } catch (...) {
    }
    return 1;
}

int InitializeInjectionNvtx2(opscope::nvtx::ExportTable tables) {
    try {
        return opscope::Collector::made() && opscope::nvtx::listen(tables, opscope::kListener);
    } catch (...) {
        return 0;
    }
}

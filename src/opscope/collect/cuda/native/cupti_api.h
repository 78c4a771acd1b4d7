// CUPTI, loaded while the program runs: the copy that the program has already, else the one that it was started with.
//
// Nothing is linked, so a library that is missing or too old is an answer, and not a program that does not start.
#pragma once

#include <cupti_activity.h>
#include <cupti_callbacks.h>
#include <cupti_version.h>
#include <dlfcn.h>
#include <link.h>

#include <cstdint>
#include <cstring>
#include <string>

namespace opscope {

#define OPSCOPE_CUPTI_FUNCTIONS(FUNCTION)                \
    FUNCTION(cuptiActivityConfigureUnifiedMemoryCounter) \
    FUNCTION(cuptiActivityDisable)                       \
    FUNCTION(cuptiActivityEnable)                        \
    FUNCTION(cuptiActivityFlushAll)                      \
    FUNCTION(cuptiActivityGetNextRecord)                 \
    FUNCTION(cuptiActivityGetNumDroppedRecords)          \
    FUNCTION(cuptiActivityRegisterCallbacks)             \
    FUNCTION(cuptiEnableCallback)                        \
    FUNCTION(cuptiGetCallbackName)                       \
    FUNCTION(cuptiGetResultString)                       \
    FUNCTION(cuptiGetStreamIdEx)                         \
    FUNCTION(cuptiGetTimestamp)                          \
    FUNCTION(cuptiGetVersion)                            \
    FUNCTION(cuptiSetThreadIdType)                       \
    FUNCTION(cuptiSubscribe)                             \
    FUNCTION(cuptiUnsubscribe)

class CuptiApi {
public:
#define OPSCOPE_POINTER(name) decltype(&::name) name = nullptr;
    OPSCOPE_CUPTI_FUNCTIONS(OPSCOPE_POINTER)

    // Since CUDA 12.5: whether a call of the driver's API is recorded.
    CUptiResult (*enableDriverApi)(CUpti_CallbackId id, std::uint8_t enable) = nullptr;

    void* library = nullptr;
    std::string path;  // of the library
    bool isLoaded = false;

    // Loads it; returns why that failed, or nothing.
    std::string load(const char* given) {
        library = loaded();
        if (!library && given && *given) library = dlopen(given, RTLD_LAZY | RTLD_LOCAL);
        if (!library) return std::string("CUPTI cannot be loaded: ") + (given && *given ? dlerror() : "no path of it");
#define OPSCOPE_LOOK_UP(name)                                       \
    name = reinterpret_cast<decltype(name)>(dlsym(library, #name)); \
    if (!name) return std::string("CUPTI has no function ") + #name;
        OPSCOPE_CUPTI_FUNCTIONS(OPSCOPE_LOOK_UP)
        enableDriverApi = reinterpret_cast<decltype(enableDriverApi)>(dlsym(library, "cuptiActivityEnableDriverApi"));
        Dl_info info;
        if (dladdr(reinterpret_cast<void*>(cuptiSubscribe), &info) && info.dli_fname) path = info.dli_fname;
        isLoaded = true;
        return {};
    }

    std::string text(CUptiResult result) const {
        const char* found = nullptr;
        return cuptiGetResultString(result, &found) == CUPTI_SUCCESS && found ? found : std::to_string(result);
    }

private:
    // Of two copies in a process only one can work at a time, so the program's is taken.
    static void* loaded() {
        std::string found;
        dl_iterate_phdr(
            [](dl_phdr_info* object, std::size_t, void* into) {
                const char* slash = std::strrchr(object->dlpi_name, '/');
                const char* name = slash ? slash + 1 : object->dlpi_name;
                if (std::strncmp(name, "libcupti.so", 11) != 0) return 0;
                *static_cast<std::string*>(into) = object->dlpi_name;
                return 1;
            },
            &found);
        return found.empty() ? nullptr : dlopen(found.c_str(), RTLD_LAZY | RTLD_NOLOAD);
    }
};

}  // namespace opscope

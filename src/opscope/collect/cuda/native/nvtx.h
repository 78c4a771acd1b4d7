// NVTX, by which programs name what they do: a program's NVTX loads the library that NVTX_INJECTION64_PATH names, and
// asks it to put its own functions into a table (NVTX's "injection" interface, binary compatible since version 2).
//
// CUPTI could serve as that library, but says neither which ranges are nested by push and pop, nor anything before
// CUDA is used; and its version 13.0.0 crashes on names of threads.
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "signals.h"

namespace opscope::nvtx {

// Which style a range has; the reader knows these numbers.
enum class Style : std::uint8_t { push_pop = 1, start_end = 2 };

// What hears of ranges and names. A range's number is unique in the process.
struct Listener {
    void (*begin)(std::uint64_t number, Style style, const std::string& name, const std::string& domain);
    void (*end)(std::uint64_t number);
    void (*nameThread)(std::uint32_t id, const std::string& name);
    void (*nameStream)(void* stream, const std::string& name);
    void (*nameDevice)(std::uint32_t device, const std::string& name);
};

namespace detail {

inline Listener listener = {};

// A domain or a registered string: a handle of ours, which programs hand back. They live as long as the process.
struct Named {
    std::string name;
};

struct Attributes {  // nvtxEventAttributes_t
    std::uint16_t version;
    std::uint16_t size;
    std::uint32_t category;
    std::int32_t color_type;
    std::uint32_t color;
    std::int32_t payload_type;
    std::int32_t reserved;
    std::uint64_t payload;
    std::int32_t message_type;
    union {
        const char* ascii;
        const wchar_t* wide;
        const Named* registered;
    } message;
};

inline std::string narrow(const wchar_t* text) {
    std::string out;
    for (; text && *text; ++text) {  // UTF-8, of code points
        const auto code = static_cast<std::uint32_t>(*text);
        if (code < 0x80) {
            out += static_cast<char>(code);
        } else if (code < 0x800) {
            out += static_cast<char>(0xC0 | (code >> 6));
            out += static_cast<char>(0x80 | (code & 0x3F));
        } else if (code < 0x10000) {
            out += static_cast<char>(0xE0 | (code >> 12));
            out += static_cast<char>(0x80 | ((code >> 6) & 0x3F));
            out += static_cast<char>(0x80 | (code & 0x3F));
        } else {
            out += static_cast<char>(0xF0 | ((code >> 18) & 0x07));
            out += static_cast<char>(0x80 | ((code >> 12) & 0x3F));
            out += static_cast<char>(0x80 | ((code >> 6) & 0x3F));
            out += static_cast<char>(0x80 | (code & 0x3F));
        }
    }
    return out;
}

inline std::string text(const char* given) { return given ? given : ""; }

inline std::string message(const Attributes* attributes) {
    if (!attributes) return {};
    switch (attributes->message_type) {
        case 1: return text(attributes->message.ascii);
        case 2: return narrow(attributes->message.wide);
        case 3: return attributes->message.registered ? attributes->message.registered->name : std::string();
        default: return {};
    }
}

inline std::string nameOf(const Named* domain) { return domain ? domain->name : std::string(); }

inline std::uint64_t next() {
    static std::atomic<std::uint64_t> last{0};
    return ++last;
}

using Ranges = std::vector<std::pair<const Named*, std::uint64_t>>;

// The open ranges of a thread, per domain, as push and pop nest within one. A thread's own destructors may still open
// some, so they are not an object with a destructor of its own, and are made again after they were freed.
inline Ranges& open() {
    static thread_local Ranges* ranges = nullptr;
    static pthread_key_t key;
    static const bool made = pthread_key_create(&key, [](void*) {
                                 delete ranges;
                                 ranges = nullptr;
                             }) == 0;
    if (!ranges) {
        ranges = new Ranges();
        if (made) pthread_setspecific(key, ranges);
    }
    return *ranges;
}

template <typename Name>
int push(const Named* domain, Name name) {
    const SignalsBlocked blocked;
    const std::uint64_t number = next();
    int depth = 0;
    for (const auto& range : open()) depth += range.first == domain;
    open().emplace_back(domain, number);
    listener.begin(number, Style::push_pop, name(), nameOf(domain));
    return depth;
}

inline int pop(const Named* domain) {
    const SignalsBlocked blocked;
    auto& ranges = open();
    int depth = -1;
    for (const auto& range : ranges) depth += range.first == domain;
    for (auto range = ranges.rbegin(); range != ranges.rend(); ++range) {
        if (range->first != domain) continue;
        listener.end(range->second);
        ranges.erase(std::next(range).base());
        return depth;
    }
    return -1;  // nothing was open
}

template <typename Name>
std::uint64_t start(const Named* domain, Name name) {
    const SignalsBlocked blocked;
    const std::uint64_t number = next();
    listener.begin(number, Style::start_end, name(), nameOf(domain));
    return number;
}

inline void end(std::uint64_t range) {
    const SignalsBlocked blocked;
    listener.end(range);
}

using Function = void (*)();

template <typename F>
void put(Function** table, unsigned size, unsigned number, F* function) {
    if (number < size && table[number]) *table[number] = reinterpret_cast<Function>(function);
}

inline void fillCore(Function** table, unsigned size) {
    put(table, size, 4, +[](const Attributes* given) { return start(nullptr, [=] { return message(given); }); });
    put(table, size, 5, +[](const char* given) { return start(nullptr, [=] { return text(given); }); });
    put(table, size, 6, +[](const wchar_t* given) { return start(nullptr, [=] { return narrow(given); }); });
    put(table, size, 7, +[](std::uint64_t range) { end(range); });
    put(table, size, 8, +[](const Attributes* given) { return push(nullptr, [=] { return message(given); }); });
    put(table, size, 9, +[](const char* given) { return push(nullptr, [=] { return text(given); }); });
    put(table, size, 10, +[](const wchar_t* given) { return push(nullptr, [=] { return narrow(given); }); });
    put(table, size, 11, +[]() { return pop(nullptr); });
    put(table, size, 14, +[](std::uint32_t id, const char* name) { listener.nameThread(id, text(name)); });
    put(table, size, 15, +[](std::uint32_t id, const wchar_t* name) { listener.nameThread(id, narrow(name)); });
}

inline void fillDomains(Function** table, unsigned size) {
    put(
        table, size, 2,
        +[](const Named* domain, const Attributes* given) { return start(domain, [=] { return message(given); }); });
    put(table, size, 3, +[](const Named*, std::uint64_t range) { end(range); });
    put(
        table, size, 4,
        +[](const Named* domain, const Attributes* given) { return push(domain, [=] { return message(given); }); });
    put(table, size, 5, +[](const Named* domain) { return pop(domain); });
    put(table, size, 10, +[](const Named*, const char* given) { return new Named{text(given)}; });
    put(table, size, 11, +[](const Named*, const wchar_t* given) { return new Named{narrow(given)}; });
    put(table, size, 12, +[](const char* name) { return new Named{text(name)}; });
    put(table, size, 13, +[](const wchar_t* name) { return new Named{narrow(name)}; });
}

// The modules of the driver and of the runtime name devices alike, and streams from a number on.
template <unsigned stream>
void fillNames(Function** table, unsigned size) {
    put(
        table, size, 1,
        +[](int device, const char* name) { listener.nameDevice(static_cast<std::uint32_t>(device), text(name)); });
    put(
        table, size, 2, +[](int device, const wchar_t* name) {
            listener.nameDevice(static_cast<std::uint32_t>(device), narrow(name));
        });
    put(table, size, stream, +[](void* given, const char* name) { listener.nameStream(given, text(name)); });
    put(table, size, stream + 1, +[](void* given, const wchar_t* name) { listener.nameStream(given, narrow(name)); });
}

struct Callbacks {  // NvtxExportTableCallbacks
    std::size_t size;
    int (*functionsOf)(int module, Function*** table, unsigned* size);
};

}  // namespace detail

using ExportTable = const void* (*)(std::uint32_t table);

// Puts our functions into a program's table; returns whether that was possible. Each library with an NVTX of its own
// asks for it.
inline bool listen(ExportTable tables, const Listener& listener) {
    using namespace detail;
    constexpr std::uint32_t kCallbacks = 1;
    detail::listener = listener;
    const auto* callbacks = static_cast<const Callbacks*>(tables(kCallbacks));
    if (!callbacks || callbacks->size < sizeof(Callbacks) || !callbacks->functionsOf) return false;
    constexpr struct {
        int module;
        void (*fill)(Function** table, unsigned size);
    } modules[] = {{1, fillCore}, {2, fillNames<5>}, {4, fillNames<3>}, {5, fillDomains}};
    for (const auto& one : modules) {
        Function** table = nullptr;
        unsigned size = 0;
        if (callbacks->functionsOf(one.module, &table, &size) && table) one.fill(table, size);
    }
    return true;
}

}  // namespace opscope::nvtx

// Notices when another part of the program begins to use CUPTI, which serves one client at a time.
//
// Nothing tells a client that another one comes: the second one's callbacks replace the first one's, buffers of both
// get mixed, and both end with nothing. So the functions with which a client begins are redirected, in the symbol
// table of CUPTI (for whoever looks them up later, by the dynamic linker or dlsym) and in the tables of libraries that
// have looked them up before. The redirected function hears of the client, and goes on to the real one. Clients that
// bring a copy of CUPTI look its functions up with dlsym. The driver would refuse a second copy, so that is redirected
// too: it finds the functions of the copy that is in use.
#pragma once

#include <dlfcn.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <new>
#include <string>
#include <utility>
#include <vector>

// Compiled so that what a function returns last is reached by a jump, also where the rest is compiled for debugging.
#ifdef __clang__
#define OPSCOPE_JUMPS __attribute__((no_sanitize("address", "undefined")))
#else
#define OPSCOPE_JUMPS __attribute__((optimize("O2"), no_sanitize("address", "undefined")))
#endif

namespace opscope {

class OtherClients {
public:
    // Hears which library begins to use CUPTI, and then what its first call returned.
    struct Hear {
        void (*comes)(const char* library);
        void (*refused)(const char* library, long result);
    };

    // Redirects the functions of all copies of CUPTI that are loaded; to be called again when more may be. Large
    // programs have hundreds of thousands of places to look at, so nothing is done where nothing was loaded since.
    static void watch(const Hear& hear) {
        std::lock_guard lock(watching_);
        unsigned long long loaded = 0;
        dl_iterate_phdr(
            [](dl_phdr_info* object, std::size_t, void* into) {
                *static_cast<unsigned long long*>(into) = object->dlpi_adds;
                return 1;
            },
            &loaded);
        if (hear_ == &hear && loaded == loaded_) return;
        hear_ = &hear;
        loaded_ = loaded;
        own_ = baseOf(reinterpret_cast<void*>(&OtherClients::watch));
        std::vector<std::string> found;  // opened later: the loader's locks are held while it lists its libraries
        dl_iterate_phdr(&OtherClients::findCopies, &found);
        for (const std::string& path : found) redirectCopy(path);
        const std::uintptr_t loader = baseOf(reinterpret_cast<void*>(dlsym_));
        dl_iterate_phdr(&OtherClients::redirectLookUp, const_cast<std::uintptr_t*>(&loader));
        dl_iterate_phdr(&OtherClients::redirectUses, nullptr);
    }

    // Forgets all in a child process, where another thread may have held the lock.
    static void forget() {
        hear_ = nullptr;
        new (&watching_) std::recursive_mutex;
    }

    // Says which copy of CUPTI is in use: its handle.
    static void use(void* library) { in_use_ = library; }

    // Whether one of CUPTI's functions is being called further up, on this thread's stack.
    static bool within(void* const* stack, int depth) {
        for (int at = 0; at < depth; ++at)
            if (isOfCupti(stack[at])) return true;
        return false;
    }

private:
    static constexpr std::array<const char*, 7> kFunctions = {"cuptiSubscribe",
                                                              "cuptiSubscribe_v2",
                                                              "cuptiActivityRegisterTimestampCallback",
                                                              "cuptiActivityRegisterCallbacks",
                                                              "cuptiActivityRegisterCallbacks_v2",
                                                              "cuptiProfilerInitialize",
                                                              "cuptiFinalize"};
    static constexpr int kCopies = 4;
    using Any = long (*)(long, long, long, long, long, long);

    struct Copy {
        std::uintptr_t base;
        std::array<Any, kFunctions.size()> real;
    };

    // Stands for a function of a copy. All of these take a few pointers and numbers, and pass in registers.
    template <int copy, std::size_t function>
    static long redirected(long a, long b, long c, long d, long e, long f) {
        void* caller = __builtin_return_address(0);
        const auto real = copies_of_cupti_[static_cast<std::size_t>(copy)].real[function];
        if (isOfCupti(caller)) return real(a, b, c, d, e, f);
        Dl_info info;
        const char* library = dladdr(caller, &info) && info.dli_fname ? info.dli_fname : "";
        const Hear* hear = hear_;
        if (hear) hear->comes(library);
        const long result = real(a, b, c, d, e, f);
        if (hear && static_cast<int>(result) != 0) hear->refused(library, static_cast<int>(result));
        return result;
    }

    template <int copy, std::size_t... functions>
    static constexpr std::array<Any, sizeof...(functions)> row(std::index_sequence<functions...>) {
        return {&redirected<copy, functions>...};
    }
    using Numbers = std::make_index_sequence<kFunctions.size()>;
    static Any replacement(int copy, std::size_t function) {
        static constexpr std::array<std::array<Any, kFunctions.size()>, kCopies> all = {
            row<0>(Numbers()), row<1>(Numbers()), row<2>(Numbers()), row<3>(Numbers())};
        return all[static_cast<std::size_t>(copy)][function];
    }

    static std::uintptr_t baseOf(const void* address) {
        Dl_info info;
        return dladdr(address, &info) ? reinterpret_cast<std::uintptr_t>(info.dli_fbase) : 0;
    }

    static bool isOfCupti(const void* address) { return isCopy(baseOf(address)); }

    static bool isCopy(std::uintptr_t base) {
        for (int copy = 0; copy < copies_; ++copy)
            if (copies_of_cupti_[static_cast<std::size_t>(copy)].base == base) return true;
        return false;
    }

    static int findCopies(dl_phdr_info* object, std::size_t, void* found) {
        const char* slash = std::strrchr(object->dlpi_name, '/');
        if (std::strncmp(slash ? slash + 1 : object->dlpi_name, "libcupti.so", 11) == 0 && !isCopy(object->dlpi_addr))
            static_cast<std::vector<std::string>*>(found)->emplace_back(object->dlpi_name);
        return 0;
    }

    static void redirectCopy(const std::string& path) {
        void* library = dlopen(path.c_str(), RTLD_LAZY | RTLD_NOLOAD);
        if (!library || copies_ == kCopies) return;
        Copy copy = {};
        for (std::size_t function = 0; function < kFunctions.size(); ++function) {
            void* real = dlsym(library, kFunctions[function]);
            if (real) copy.base = baseOf(real);
            copy.real[function] = reinterpret_cast<Any>(real);
        }
        dlclose(library);
        if (!copy.base) return;
        const int number = copies_;
        copies_of_cupti_[static_cast<std::size_t>(number)] = copy;
        copies_ = number + 1;
        for (std::size_t function = 0; function < kFunctions.size(); ++function)
            if (copy.real[function]) redirectSymbol(copy, function, replacement(number, function));
    }

    // A symbol's value is relative to where its library lies, and that sum may wrap around.
    static void redirectSymbol(const Copy& copy, std::size_t function, Any to) {
        Dl_info info;
        ElfW(Sym)* symbol = nullptr;
        if (!dladdr1(reinterpret_cast<void*>(copy.real[function]), &info, reinterpret_cast<void**>(&symbol),
                     RTLD_DL_SYMENT) ||
            !symbol)
            return;
        Write write = {reinterpret_cast<std::uintptr_t>(&symbol->st_value),
                       reinterpret_cast<std::uintptr_t>(to) - copy.base};
        dl_iterate_phdr([](dl_phdr_info* object, std::size_t,
                           void* given) { return overwrite(*object, *static_cast<Write*>(given)); },
                        &write);
    }

    // Redirects dlsym where it is defined, in each of its versions.
    static int redirectLookUp(dl_phdr_info* object, std::size_t, void* loader) {
        if (object->dlpi_addr != *static_cast<const std::uintptr_t*>(loader)) return 0;
        const Dynamic found = dynamicOf(*object);
        // The names follow the symbols, which have no count of their own.
        const auto* symbols = reinterpret_cast<ElfW(Sym)*>(found.symbols);
        const std::size_t count = found.names > found.symbols ? (found.names - found.symbols) / sizeof *symbols : 0;
        const auto value = reinterpret_cast<std::uintptr_t>(dlsym_) - object->dlpi_addr;
        for (std::size_t at = 0; at < count; ++at)
            if (symbols[at].st_value == value && symbols[at].st_shndx != SHN_UNDEF)
                overwrite(*object, {reinterpret_cast<std::uintptr_t>(&symbols[at].st_value),
                                    reinterpret_cast<std::uintptr_t>(&OtherClients::lookedUp) - object->dlpi_addr});
        return 1;
    }

    // Where a library's tables for the loader are.
    struct Dynamic {
        std::uintptr_t symbols = 0, names = 0, jumps = 0, relocations = 0;
        std::size_t jumps_size = 0, relocations_size = 0;
    };

    static Dynamic dynamicOf(const dl_phdr_info& object) {
        Dynamic found;
        for (int at = 0; at < object.dlpi_phnum; ++at) {
            if (object.dlpi_phdr[at].p_type != PT_DYNAMIC) continue;
            auto* entry = reinterpret_cast<const ElfW(Dyn)*>(object.dlpi_addr + object.dlpi_phdr[at].p_vaddr);
            for (; entry->d_tag != DT_NULL; ++entry) {
                // The loader has made addresses of these; in the kernel's own library they are still relative to it.
                const std::uintptr_t given = entry->d_un.d_ptr;
                const std::uintptr_t address = given < object.dlpi_addr ? given + object.dlpi_addr : given;
                switch (entry->d_tag) {
                    case DT_SYMTAB: found.symbols = address; break;
                    case DT_STRTAB: found.names = address; break;
                    case DT_JMPREL: found.jumps = address; break;
                    case DT_RELA: found.relocations = address; break;
                    case DT_PLTRELSZ: found.jumps_size = entry->d_un.d_val; break;
                    case DT_RELASZ: found.relocations_size = entry->d_un.d_val; break;
                    default: break;
                }
            }
        }
        return found;
    }

    // Redirects what a library has looked up before. Nothing here may call the loader, which lists its libraries.
    static int redirectUses(dl_phdr_info* object, std::size_t, void*) {
        if (object->dlpi_addr == own_ || isCopy(object->dlpi_addr)) return 0;
        const Dynamic found = dynamicOf(*object);
        redirectSlots(*object, found.jumps, found.jumps_size);
        redirectSlots(*object, found.relocations, found.relocations_size);
        return 0;
    }

    static void redirectSlots(const dl_phdr_info& object, std::uintptr_t table, std::size_t size) {
        const auto* entry = reinterpret_cast<const ElfW(Rela)*>(table);
        for (std::size_t at = 0; table && at < size / sizeof *entry; ++at)
            if (ELF64_R_SYM(entry[at].r_info)) redirectSlot(object, object.dlpi_addr + entry[at].r_offset);
    }

    static void redirectSlot(const dl_phdr_info& object, std::uintptr_t slot) {
        const auto value = *reinterpret_cast<const std::uintptr_t*>(slot);
        for (int copy = 0; copy < copies_; ++copy)
            for (std::size_t function = 0; function < kFunctions.size(); ++function) {
                const Any real = copies_of_cupti_[static_cast<std::size_t>(copy)].real[function];
                if (real && value == reinterpret_cast<std::uintptr_t>(real))
                    overwrite(object, {slot, reinterpret_cast<std::uintptr_t>(replacement(copy, function))});
            }
        if (value == reinterpret_cast<std::uintptr_t>(dlsym_))
            overwrite(object, {slot, reinterpret_cast<std::uintptr_t>(&OtherClients::lookedUp)});
    }

    struct Write {
        std::uintptr_t at, value;
    };

    using LookUp = void* (*)(void* library, const char* name);

    // Stands for dlsym. That answers by who calls it where a name's next definition is wanted, so then it has to be
    // called as if its caller did: by a jump.
    OPSCOPE_JUMPS static void* lookedUp(void* library, const char* name) {
        if (name && std::strncmp(name, "cupti", 5) == 0 && library != RTLD_NEXT) return ofCupti(library, name);
        return dlsym_(library, name);
    }

    // Returns what is found; where that is a function of a copy of CUPTI, the one of the copy that is in use.
    __attribute__((noinline)) static void* ofCupti(void* library, const char* name) {
        if (const Hear* hear = hear_) watch(*hear);
        void* found = dlsym_(library, name);
        void* in_use = in_use_;
        if (!found || !in_use || !(isOfCupti(found) || baseOf(found) == own_)) return found;
        void* used = dlsym_(in_use, name);
        return used ? used : found;
    }

    // Writes a word of a library, if it is its own; its page stays writable, as other words of it may have to be.
    static int overwrite(const dl_phdr_info& object, const Write& write) {
        const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
        for (int at = 0; at < object.dlpi_phnum; ++at) {
            const ElfW(Phdr) & segment = object.dlpi_phdr[at];
            const std::uintptr_t begin = object.dlpi_addr + segment.p_vaddr;
            if (segment.p_type != PT_LOAD || write.at < begin || write.at >= begin + segment.p_memsz) continue;
            const std::uintptr_t first = write.at & ~(page - 1);
            const int executable = segment.p_flags & PF_X ? PROT_EXEC : 0;
            if (mprotect(reinterpret_cast<void*>(first), page, PROT_READ | PROT_WRITE | executable) == 0)
                *reinterpret_cast<std::uintptr_t*>(write.at) = write.value;
            return 1;
        }
        return 0;
    }

    static inline std::atomic<const Hear*> hear_{nullptr};
    static inline std::atomic<void*> in_use_{nullptr};
    static inline std::atomic<std::uintptr_t> own_{0};
    static inline LookUp dlsym_ = &::dlsym;
    static inline std::recursive_mutex watching_;
    static inline unsigned long long loaded_ = 0;  // how many libraries there had been
    static inline std::atomic<int> copies_{0};
    static inline std::array<Copy, kCopies> copies_of_cupti_;
};

}  // namespace opscope

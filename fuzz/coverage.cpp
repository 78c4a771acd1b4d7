// Tells libFuzzer what an input reaches in the compiled reader, and which values it compares there. GCC calls a
// function in every basic block and at every comparison; libFuzzer, which Python has loaded, wants a counter for each
// block, as clang keeps them.

#include <cstddef>
#include <cstdint>

namespace {

constexpr size_t kCounters = 1 << 17;  // one per byte of code

uint8_t counters[kCounters];
uintptr_t places[2 * kCounters];  // address and flags of each

// What libFuzzer offers. The sanitizers' library has functions of the same names, which do nothing.
struct Fuzzer {
    void (*counters)(uint8_t*, uint8_t*);
    void (*places)(const uintptr_t*, const uintptr_t*);
    void (*compared1)(uint8_t, uint8_t);
    void (*compared2)(uint16_t, uint16_t);
    void (*compared4)(uint32_t, uint32_t);
    void (*compared8)(uint64_t, uint64_t);
    void (*switched)(uint64_t, uint64_t*);
};

Fuzzer fuzzer;

}  // namespace

extern "C" {

void opscope_fuzz(const Fuzzer* to) {
    fuzzer = *to;
    for (size_t i = 0; i < kCounters; ++i) places[2 * i] = i + 1;
    fuzzer.counters(counters, counters + kCounters);
    fuzzer.places(places, places + 2 * kCounters);
}

void __sanitizer_cov_trace_pc() {
    const auto place = reinterpret_cast<uintptr_t>(__builtin_return_address(0));
    ++counters[(place - reinterpret_cast<uintptr_t>(&opscope_fuzz)) % kCounters];
}

#define COMPARED(suffix, type, function)                             \
    void __sanitizer_cov_trace_##suffix(type one, type other) {      \
        if (fuzzer.function != nullptr) fuzzer.function(one, other); \
    }
COMPARED(cmp1, uint8_t, compared1)
COMPARED(cmp2, uint16_t, compared2)
COMPARED(cmp4, uint32_t, compared4)
COMPARED(cmp8, uint64_t, compared8)
COMPARED(const_cmp1, uint8_t, compared1)
COMPARED(const_cmp2, uint16_t, compared2)
COMPARED(const_cmp4, uint32_t, compared4)
COMPARED(const_cmp8, uint64_t, compared8)

void __sanitizer_cov_trace_switch(uint64_t value, uint64_t* cases) {
    if (fuzzer.switched != nullptr) fuzzer.switched(value, cases);
}

// clang does not report comparisons of decimals.
void __sanitizer_cov_trace_cmpf(float, float) {}
void __sanitizer_cov_trace_cmpd(double, double) {}

}  // extern "C"

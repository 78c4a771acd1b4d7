// The time of every moment of a graph of steps, in one pass: graph.py has the same in Python, and says what is right.

#include <algorithm>
#include <cstddef>
#include <cstdint>

extern "C" {

int32_t opscope_replay_version() { return 1; }

// Moments are in an order in which each comes after all that it waits for; edges stand by the moment that they lead to,
// those of moment i from begin[i] to begin[i + 1].
void opscope_replay(size_t count, const int64_t* begin, const int64_t* source, const int64_t* lag, const int64_t* root,
                    const int64_t* residual, int64_t* time) {
    for (size_t i = 0; i < count; ++i) {
        int64_t latest = root[i];
        for (int64_t edge = begin[i]; edge < begin[i + 1]; ++edge)
            latest = std::max(latest, time[source[edge]] + lag[edge]);
        time[i] = latest + residual[i];
    }
}

}  // extern "C"

// What encloses what among slices that are sorted by thread and start, outer before inner: nesting.py's rules in one
// pass.
//
// nesting.py has the same in numpy, which takes many passes: it is used where this is not built, and says what is
// right.

#include <cstddef>
#include <cstdint>
#include <new>
#include <vector>

extern "C" {

int32_t opscope_nesting_version() { return 1; }

// Per slice: the innermost one around it or -1, the place in the order behind all that lie below it, and whether it
// overlaps the innermost earlier one around its start. Returns whether there was room.
int32_t opscope_nesting(size_t count, const int64_t* order, const int64_t* thread, const int64_t* start,
                        const int64_t* end, int64_t* parent, int64_t* after, bool* crosses) {
    try {
        std::vector<int64_t> open;
        const auto close = [&](size_t place) {
            after[open.back()] = static_cast<int64_t>(place);
            open.pop_back();
        };
        for (size_t place = 0; place < count; ++place) {
            const int64_t slice = order[place];
            while (!open.empty() && thread[open.back()] != thread[slice]) close(place);
            while (!open.empty() && end[open.back()] <= start[slice]) close(place);
            crosses[slice] = !open.empty() && end[open.back()] < end[slice];
            // One without duration encloses none; but then it is closed already, as what comes now begins at its end.
            while (!open.empty() && end[open.back()] < end[slice]) close(place);
            parent[slice] = open.empty() ? -1 : open.back();
            open.push_back(slice);
        }
        while (!open.empty()) close(count);
        return true;
    } catch (const std::bad_alloc&) {
        return false;
    }
}
}

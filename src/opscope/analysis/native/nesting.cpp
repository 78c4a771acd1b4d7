// What encloses what among slices that are sorted by thread and start, outer before inner: nesting.py's rules in one
// pass.
//
// nesting.py has the same in numpy, which takes many passes: it is used where this is not built, and says what is
// right.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <new>
#include <vector>

namespace {

// The part of the order that one thread's slices take, and where the last question to it ended.
struct Section {
    size_t first = 0;
    size_t last = 0;
    size_t place = 0;
};

// The first place in [section.first, section.last) whose slice begins after a time. Questions mostly ascend: looks from
// the last answer on, in steps that double.
size_t begins_after(const Section& section, const int64_t* order, const int64_t* start, int64_t time) {
    const auto later = [&](size_t place) { return start[order[place]] > time; };
    size_t low = section.first;
    size_t high = section.last;
    if (section.place == low || !later(section.place - 1)) {
        low = section.place;
        for (size_t step = 1; low + step < section.last; step *= 2) {
            if (later(low + step)) {
                high = low + step + 1;
                break;
            }
            low += step;
        }
    } else {
        high = section.place;
    }
    const int64_t* found =
        std::partition_point(order + low, order + high, [&](int64_t slice) { return start[slice] <= time; });
    return static_cast<size_t>(found - order);
}

}  // namespace

extern "C" {

int32_t opscope_nesting_version() { return 3; }

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

// Per question (a thread and a time) the innermost slice that contains it, or -1. A slice contains its start and not
// its end.
void opscope_innermost(size_t count, const int64_t* order, const int64_t* thread, const int64_t* start,
                       const int64_t* end, const int64_t* parent, size_t questions, const int64_t* asked_thread,
                       const int64_t* asked_time, int64_t* answer) {
    Section section;
    for (size_t question = 0; question < questions; ++question) {
        const int64_t wanted = asked_thread[question];
        if (section.first == section.last || thread[order[section.first]] != wanted) {
            const int64_t* const stop = order + count;
            const auto* first = std::partition_point(order, stop, [&](int64_t one) { return thread[one] < wanted; });
            const auto* last = std::partition_point(first, stop, [&](int64_t one) { return thread[one] == wanted; });
            section.first = section.place = static_cast<size_t>(first - order);
            section.last = static_cast<size_t>(last - order);
        }
        const int64_t time = asked_time[question];
        section.place = begins_after(section, order, start, time);
        int64_t slice = section.place == section.first ? -1 : order[section.place - 1];
        while (slice >= 0 && end[slice] <= time) slice = parent[slice];
        answer[question] = slice;
    }
}

// Per slice the first lane of its track in which it nests or touches nothing: lanes.py's rule. Returns whether there
// was room.
int32_t opscope_lanes(size_t count, const int64_t* order, const int64_t* track, const int64_t* start,
                      const int64_t* end, int64_t* lane) {
    try {
        std::vector<std::vector<int64_t>> open;  // per lane the ends of the slices that are open, outermost first
        for (size_t place = 0; place < count; ++place) {
            const int64_t slice = order[place];
            if (place && track[order[place - 1]] != track[slice]) open.clear();
            size_t chosen = 0;
            for (; chosen < open.size(); ++chosen) {
                std::vector<int64_t>& ends = open[chosen];
                while (!ends.empty() && ends.back() <= start[slice]) ends.pop_back();
                if (ends.empty() || ends.back() >= end[slice]) break;
            }
            if (chosen == open.size()) open.emplace_back();
            open[chosen].push_back(end[slice]);
            lane[slice] = static_cast<int64_t>(chosen);
        }
        return true;
    } catch (const std::bad_alloc&) {
        return false;
    }
}
}

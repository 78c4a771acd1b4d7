// What encloses what among slices that are sorted by thread and start, outer before inner: nesting.py's rules in one
// pass.
//
// nesting.py has the same in numpy, which takes many passes: it is used where this is not built, and says what is
// right.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <new>
#include <unordered_map>
#include <vector>

namespace {

// One thread's slices in the order, and how far questions that ascend have come: which slices are open then.
struct Section {
    size_t place = 0;
    size_t last = 0;
    int64_t time = INT64_MIN;
    std::vector<int64_t> open;
};

struct Slices {
    size_t count;
    const int64_t *order, *thread, *start, *end;

    Section section(int64_t wanted) const {
        const int64_t* const stop = order + count;
        const auto* first = std::partition_point(order, stop, [&](int64_t one) { return thread[one] < wanted; });
        const auto* last = std::partition_point(first, stop, [&](int64_t one) { return thread[one] == wanted; });
        Section section;
        section.place = static_cast<size_t>(first - order);
        section.last = static_cast<size_t>(last - order);
        return section;
    }

    // Opens what has begun by a time, and closes what has ended.
    int64_t innermost(Section& section, int64_t time) const {
        std::vector<int64_t>& open = section.open;
        section.time = time;
        for (; section.place < section.last && start[order[section.place]] <= time; ++section.place) {
            const int64_t slice = order[section.place];
            while (!open.empty() && (end[open.back()] <= start[slice] || end[open.back()] < end[slice]))
                open.pop_back();
            open.push_back(slice);
        }
        while (!open.empty() && end[open.back()] <= time) open.pop_back();
        return open.empty() ? -1 : open.back();
    }
};

}  // namespace

extern "C" {

int32_t opscope_nesting_version() { return 4; }

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
// its end. Returns whether there was room.
int32_t opscope_innermost(size_t count, const int64_t* order, const int64_t* thread, const int64_t* start,
                          const int64_t* end, size_t questions, const int64_t* asked_thread, const int64_t* asked_time,
                          int64_t* answer) {
    try {
        const Slices slices{count, order, thread, start, end};
        std::unordered_map<int64_t, Section> sections;
        Section* section = nullptr;
        int64_t current = 0;
        std::vector<size_t> late;  // questions about an earlier time than the one before them
        for (size_t question = 0; question < questions; ++question) {
            const int64_t wanted = asked_thread[question];
            if (!section || wanted != current) {
                const auto found = sections.find(wanted);
                section = found != sections.end() ? &found->second
                                                  : &sections.emplace(wanted, slices.section(wanted)).first->second;
                current = wanted;
            }
            if (asked_time[question] < section->time)
                late.push_back(question);
            else
                answer[question] = slices.innermost(*section, asked_time[question]);
        }
        std::sort(late.begin(), late.end(), [&](size_t left, size_t right) {
            return asked_thread[left] != asked_thread[right] ? asked_thread[left] < asked_thread[right]
                                                             : asked_time[left] < asked_time[right];
        });
        for (size_t number = 0; number < late.size(); ++number) {
            const int64_t wanted = asked_thread[late[number]];
            Section& again = sections[wanted];
            if (!number || asked_thread[late[number - 1]] != wanted) again = slices.section(wanted);
            answer[late[number]] = slices.innermost(again, asked_time[late[number]]);
        }
        return true;
    } catch (const std::bad_alloc&) {
        return false;
    }
}

// Per slice the first lane of its track in which it nests or touches nothing: lanes.py's rule. Returns whether there
// was room.
constexpr size_t kMostLanes = 4096;
int32_t opscope_lanes(size_t count, const int64_t* order, const int64_t* track, const int64_t* start,
                      const int64_t* end, int64_t* lane) {
    try {
        std::vector<std::vector<int64_t>> open;  // per lane the ends of the slices that are open, outermost first
        std::vector<int64_t> last;               // per lane the end of the innermost one
        for (size_t place = 0; place < count; ++place) {
            const int64_t slice = order[place];
            if (place && track[order[place - 1]] != track[slice]) {
                open.clear();
                last.clear();
            }
            size_t chosen = 0;
            for (; chosen < open.size(); ++chosen) {
                if (last[chosen] > start[slice] && last[chosen] < end[slice]) continue;  // crosses: most do, if any
                std::vector<int64_t>& ends = open[chosen];
                while (!ends.empty() && ends.back() <= start[slice]) ends.pop_back();
                if (ends.empty() || ends.back() >= end[slice]) break;
                last[chosen] = ends.back();
            }
            if (chosen == open.size() && open.size() < kMostLanes) {
                open.emplace_back();
                last.push_back(0);
            }
            if (chosen == open.size()) --chosen;
            open[chosen].push_back(end[slice]);
            last[chosen] = end[slice];
            lane[slice] = static_cast<int64_t>(chosen);
        }
        return true;
    } catch (const std::bad_alloc&) {
        return false;
    }
}
}

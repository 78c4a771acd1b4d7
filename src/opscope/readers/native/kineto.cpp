// Reads Kineto's trace events from JSON text into columns, piece by piece, in one pass.
//
// Only plain events are turned into rows here: numbers written as numbers, names as strings, arguments as an object. Any
// other event, and any stretch that is no event at all, is handed back as it stands ("odd"), and Python decides what it
// means. So every rule about odd data exists once, in readers/events.py, and this file stays a plain parser.
//
// The interface is C, for ctypes: no Python header is needed, and one build serves every Python version.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#ifdef __GLIBC__  // the headers above say so
#include <malloc.h>
#endif

namespace {

constexpr int64_t kNull = INT64_MIN;
constexpr int32_t kNoText = -1;
constexpr int64_t kLatest = int64_t{1} << 62;  // as in readers/events.py
constexpr size_t kLongestEvent = size_t{16} << 20;  // more is a string that was never closed
constexpr size_t kMostRescanned = size_t{1} << 30;
constexpr size_t kLongestHeaderValue = size_t{64} << 20;

// ---------------------------------------------------------------- strings, each kept once

class Interner {
public:
    Interner() : slots_(1 << 12) {}

    int32_t code(std::string_view text) {
        const uint64_t hash = hash_of(text);
        size_t at = hash & (slots_.size() - 1);
        for (;; at = (at + 1) & (slots_.size() - 1)) {
            Slot& slot = slots_[at];
            if (slot.code < 0) break;
            if (slot.hash == hash && texts_[slot.code] == text) return slot.code;
        }
        const auto code = static_cast<int32_t>(texts_.size());
        storage_.emplace_back(text);
        texts_.push_back(storage_.back());
        slots_[at] = {hash, code};
        if (texts_.size() * 2 > slots_.size()) grow();
        return code;
    }

    size_t size() const { return texts_.size(); }
    std::string_view text(size_t code) const { return texts_[code]; }

private:
    struct Slot {
        uint64_t hash = 0;
        int32_t code = -1;
    };

    static uint64_t hash_of(std::string_view text) {
        // Eight bytes at a time, multiplied and folded; names of kernels run to thousands of characters.
        uint64_t hash = text.size() * 0x9e3779b97f4a7c15ull;
        const char* p = text.data();
        size_t left = text.size();
        for (; left >= 8; p += 8, left -= 8) {
            uint64_t word;
            std::memcpy(&word, p, 8);
            hash = (hash ^ word) * 0xff51afd7ed558ccdull;
            hash ^= hash >> 32;
        }
        uint64_t rest = 0;
        std::memcpy(&rest, p, left);
        hash = (hash ^ rest) * 0xc4ceb9fe1a85ec53ull;
        return hash ^ (hash >> 29);
    }

    void grow() {
        std::vector<Slot> old(slots_.size() * 2);
        old.swap(slots_);
        for (const Slot& slot : old) {
            if (slot.code < 0) continue;
            size_t at = slot.hash & (slots_.size() - 1);
            while (slots_[at].code >= 0) at = (at + 1) & (slots_.size() - 1);
            slots_[at] = slot;
        }
    }

    std::vector<Slot> slots_;
    std::deque<std::string> storage_;  // never moves its elements
    std::vector<std::string_view> texts_;
};

// ---------------------------------------------------------------- tables

// The order of these, and of the columns of each, is known to readers/native/__init__.py.
enum Table { kOperators, kLaunches, kActivities, kAnnotations, kFrames, kAllocations, kOverheads, kTables };

struct Columns {
    std::vector<std::vector<int64_t>> numbers;
    std::vector<std::vector<int32_t>> codes;
    std::vector<double> occupancy;

    Columns(size_t number_count, size_t code_count) : numbers(number_count), codes(code_count) {}

    void add(std::initializer_list<int64_t> row_numbers, std::initializer_list<int32_t> row_codes) {
        auto number = numbers.begin();
        for (int64_t value : row_numbers) (number++)->push_back(value);
        auto code = codes.begin();
        for (int32_t value : row_codes) (code++)->push_back(value);
    }
};

enum Category : uint8_t { kIgnored, kOperator, kLaunch, kKernel, kMemcpy, kMemset, kAnnotation, kFrame, kOverhead };

Category category_of(std::string_view token) {
    struct Known {
        const char* text;
        Category category;
    };
    // Capitalised names were written before PyTorch 1.13.
    static constexpr Known known[] = {
        {"cpu_op", kOperator},         {"Operator", kOperator},        {"cuda_runtime", kLaunch},
        {"cuda_driver", kLaunch},      {"hip_runtime", kLaunch},       {"hip_driver", kLaunch},
        {"Runtime", kLaunch},          {"kernel", kKernel},            {"Kernel", kKernel},
        {"gpu_memcpy", kMemcpy},       {"Memcpy", kMemcpy},            {"gpu_memset", kMemset},
        {"Memset", kMemset},           {"user_annotation", kAnnotation}, {"python_function", kFrame},
        {"python_func", kFrame},       {"overhead", kOverhead},        {"Overhead", kOverhead},
    };
    for (const Known& entry : known)
        if (token.size() >= 2 && token.substr(1, token.size() - 2) == entry.text) return entry.category;
    return kIgnored;
}

// ---------------------------------------------------------------- one event

struct Token {
    const char* begin = nullptr;
    const char* end = nullptr;
    explicit operator bool() const { return begin != nullptr; }
    std::string_view text() const { return {begin, static_cast<size_t>(end - begin)}; }
    bool is_null() const { return !begin || text() == "null"; }
};

// The fields of one event, as they are written. Which are present depends on the category.
struct Event {
    Token ph, cat, name, pid, tid, ts, dur, args;
    Token external_id, old_external_id, correlation, sequence, forward_thread, dims, old_dims, types, strides, concrete,
        kernel_file, device, stream, graph, node, bytes, grid, block, registers, shared_memory, occupancy, collective, memory_bytes, total_allocated, device_id,
        device_type;
    bool odd_args = false;
};

enum class Parsed { kWhole, kNeedsMore, kBroken };

inline bool is_space(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

// Reads JSON text that may end anywhere. `end` is the end of what has arrived; `at` only ever moves forward.
struct Cursor {
    const char* at;
    const char* end;
    Parsed state = Parsed::kWhole;
    bool plain = true;  // whether every bare value so far was a number, true, false or null

    bool fail(Parsed why) {
        state = why;
        return false;
    }

    bool skip_space() {
        while (at < end && is_space(*at)) ++at;
        return at < end || fail(Parsed::kNeedsMore);
    }

    // `at` is on an opening quote; moves past the closing one.
    bool skip_string() {
        for (++at; at < end; ++at) {
            // Eight characters at a time while none of them is a quote or a backslash.
            while (end - at >= 8) {
                uint64_t word;
                std::memcpy(&word, at, 8);
                if (has_byte(word, '"') || has_byte(word, '\\')) break;
                at += 8;
            }
            if (at >= end) break;
            if (*at == '"') {
                ++at;
                return true;
            }
            if (*at == '\\') ++at;
        }
        return fail(Parsed::kNeedsMore);
    }

    // `at` is on any value; moves past it. Containers are only balanced, not checked, and without recursion.
    bool skip_value() {
        if (*at == '"') return skip_string();
        if (*at == '{' || *at == '[') return skip_container();
        const char* begin = at;
        while (at < end && *at != ',' && *at != '}' && *at != ']' && *at != '"' && *at != ':' && !is_space(*at)) ++at;
        if (at >= end) return fail(Parsed::kNeedsMore);
        if (at == begin) return fail(Parsed::kBroken);
        plain = plain && is_plain({begin, static_cast<size_t>(at - begin)});
        return true;
    }

    bool skip_container() {
        size_t depth = 0;
        while (at < end) {
            switch (*at) {
                case '"':
                    if (!skip_string()) return false;
                    continue;
                case '{': case '[':
                    ++depth;
                    break;
                case '}': case ']':
                    if (--depth == 0) {
                        ++at;
                        return true;
                    }
                    break;
                default: break;
            }
            ++at;
        }
        return fail(Parsed::kNeedsMore);
    }

    // Calls `field(key, token)` for each entry of the object that `at` is on.
    template <typename Field>
    bool each_field(Field field) {
        for (++at;;) {
            if (!skip_space()) return false;
            if (*at == '}') {
                ++at;
                return true;
            }
            if (*at != '"') return fail(Parsed::kBroken);
            const char* key = at + 1;
            if (!skip_string()) return false;
            const std::string_view name(key, static_cast<size_t>(at - 1 - key));
            if (!skip_space()) return false;
            if (*at != ':') return fail(Parsed::kBroken);
            ++at;
            if (!skip_space()) return false;
            if (!field(name)) return false;
            if (!skip_space()) return false;
            if (*at == ',') {
                ++at;
            } else if (*at != '}') {
                return fail(Parsed::kBroken);
            }
        }
    }

    bool value(Token& token) {
        token.begin = at;
        if (!skip_value()) return false;
        token.end = at;
        return true;
    }

private:
    static bool is_plain(std::string_view text) {
        if (text == "true" || text == "false" || text == "null") return true;
        if (text[0] == '-') text.remove_prefix(1);
        if (text.empty() || text[0] < '0' || text[0] > '9') return false;
        if (text[0] == '0' && text.size() > 1 && text[1] >= '0' && text[1] <= '9') return false;
        return text.find_first_not_of("0123456789.eE+-") == std::string_view::npos;
    }

    static bool has_byte(uint64_t word, char wanted) {
        const uint64_t x = word ^ (0x0101010101010101ull * static_cast<uint8_t>(wanted));
        return ((x - 0x0101010101010101ull) & ~x & 0x8080808080808080ull) != 0;
    }
};

Token* argument_of(Event& event, std::string_view key) {
    switch (key.size()) {
        case 4: return key == "grid" ? &event.grid : nullptr;
        case 5:
            if (key == "block") return &event.block;
            if (key == "bytes") return &event.bytes;
            return key == "Bytes" ? &event.memory_bytes : nullptr;
        case 6: return key == "device" ? &event.device : key == "stream" ? &event.stream : nullptr;
        case 8: return key == "graph id" ? &event.graph : nullptr;
        case 9: return key == "Device Id" ? &event.device_id : nullptr;
        case 10:
            if (key == "Input Dims") return &event.dims;
            if (key == "Input dims") return &event.old_dims;
            return key == "Input type" ? &event.types : nullptr;
        case 11:
            if (key == "External id") return &event.external_id;
            if (key == "external id") return &event.old_external_id;
            if (key == "correlation") return &event.correlation;
            if (key == "kernel_file") return &event.kernel_file;
            return key == "Device Type" ? &event.device_type : nullptr;
        case 13:
            if (key == "Fwd thread id") return &event.forward_thread;
            if (key == "Input Strides") return &event.strides;
            if (key == "graph node id") return &event.node;
            return key == "shared memory" ? &event.shared_memory : nullptr;
        case 15:
            if (key == "Sequence number") return &event.sequence;
            if (key == "Collective name") return &event.collective;
            if (key == "Concrete Inputs") return &event.concrete;
            return key == "Total Allocated" ? &event.total_allocated : nullptr;
        case 20: return key == "registers per thread" ? &event.registers : nullptr;
        case 25: return key == "est. achieved occupancy %" ? &event.occupancy : nullptr;
        default: return nullptr;
    }
}

Token* field_of(Event& event, std::string_view key) {
    switch (key.size()) {
        case 2: return key == "ph" ? &event.ph : key == "ts" ? &event.ts : nullptr;
        case 3:
            if (key == "cat") return &event.cat;
            if (key == "pid") return &event.pid;
            if (key == "tid") return &event.tid;
            return key == "dur" ? &event.dur : nullptr;
        case 4: return key == "name" ? &event.name : nullptr;
        default: return nullptr;
    }
}

bool parse_event(Cursor& cursor, Event& event) {
    return cursor.each_field([&](std::string_view key) {
        if (key == "args" && *cursor.at == '{') {
            event.odd_args = false;
            return cursor.each_field([&](std::string_view name) {
                Token unused;
                Token* token = argument_of(event, name);
                return cursor.value(token ? *token : unused);
            });
        }
        Token unused;
        if (key == "args") {
            if (!cursor.value(unused)) return false;
            event.odd_args = !unused.is_null();
            return true;
        }
        Token* token = field_of(event, key);
        return cursor.value(token ? *token : unused);
    });
}

// ---------------------------------------------------------------- values

// Each returns whether the token is plain; the value is kNull where it is absent, null or too large to be kept.

bool integer(const Token& token, int64_t& value, int64_t largest = INT64_MAX) {
    value = kNull;
    if (token.is_null()) return true;
    const char* p = token.begin;
    const bool negative = *p == '-';
    p += negative;
    if (p == token.end || token.end - p > 20) return false;
    unsigned __int128 digits = 0;
    for (; p < token.end; ++p) {
        if (*p < '0' || *p > '9') return false;
        digits = digits * 10 + static_cast<unsigned>(*p - '0');
    }
    if (digits > static_cast<unsigned __int128>(largest)) return true;  // an unset id is written as 2**64 - 1
    value = negative ? -static_cast<int64_t>(digits) : static_cast<int64_t>(digits);
    return true;
}

// Microseconds as decimal text -> integer nanoseconds, rounded to the nearest one.
bool nanoseconds(const Token& token, int64_t& value) {
    const char* p = token.begin;
    const bool negative = *p == '-';
    p += negative;
    if (p == token.end) return false;
    int64_t number = 0;
    int count = 0, decimals = -1;
    char fourth = '0';
    bool more = false;  // whether a digit behind the fourth decimal is not 0
    for (; p < token.end; ++p) {
        if (*p == '.' && decimals < 0 && count) {
            decimals = 0;
            continue;
        }
        if (*p < '0' || *p > '9') return false;
        if (decimals >= 3) {
            if (decimals++ == 3) fourth = *p; else more |= *p != '0';
            continue;
        }
        if (++count > 18) return false;
        number = number * 10 + (*p - '0');
        if (decimals >= 0) ++decimals;
    }
    if (decimals == 0) return false;
    for (int digit = decimals < 0 ? 0 : decimals; digit < 3; ++digit) {
        if (number > kLatest / 10) return false;
        number *= 10;
    }
    number += fourth > '5' || (fourth == '5' && (more || number % 2 == 1));
    value = negative ? -number : number;
    return -kLatest < value && value < kLatest;
}

bool decimal(const Token& token, double& value) {
    value = __builtin_nan("");
    if (token.is_null()) return true;
    if (*token.begin != '-' && (*token.begin < '0' || *token.begin > '9')) return false;
    const std::string text(token.text());
    char* end = nullptr;
    value = std::strtod(text.c_str(), &end);
    return end == text.c_str() + text.size();
}

constexpr int64_t kInt32 = INT32_MAX;

// ---------------------------------------------------------------- the reader

class Reader {
public:
    Reader() : tables_{{5, 7}, {4, 2}, {12, 5}, {2, 2}, {2, 2}, {5, 1}, {2, 1}} {
        category_codes_.reserve(64);
    }

    // Nothing that C++ throws may cross into C: there it would end the process.
    template <typename Work>
    bool guarded(Work work) noexcept {
        try {
            work();
            return true;
        } catch (...) {
            return false;
        }
    }

    void feed(const char* data, size_t size) {
        pending_.insert(pending_.end(), data, data + size);
        parse(false);
    }

    void finish() {
        parse(true);
        truncated_ = state_ != State::kFooter;
        if (state_ == State::kHeader && header_.empty()) give_up();
    }

    const Columns& table(int which) const { return tables_[which]; }
    void release(int which) { tables_[which] = Columns(0, 0); }
    const Interner& names() const { return names_; }
    const Interner& texts() const { return texts_; }
    const Interner& identities() const { return identities_; }
    const std::vector<int32_t>& threads() const { return threads_; }
    const std::string& header() const { return header_; }
    const std::string& footer() const { return footer_; }
    size_t footer_size() const { return footer_size_; }
    const std::string& odd() const { return odd_; }
    const std::vector<int64_t>& odd_ends() const { return odd_ends_; }
    void clear_odd() {
        odd_.clear();
        odd_ends_.clear();
    }
    int64_t event_count() const { return event_count_; }
    bool truncated() const { return truncated_; }
    bool found_events() const { return state_ == State::kEvents || state_ == State::kFooter; }

private:
    enum class State { kHeader, kEvents, kFooter, kNoTrace };

    void parse(bool last) {
        size_t used = 0;
        // A header value that is still open is looked at again when there is twice as much of it.
        if (state_ == State::kHeader && (last || pending_.size() >= header_retry_)) {
            header_retry_ = pending_.size() * 2;
            used = parse_header();
        }
        if (state_ == State::kEvents) used = parse_events(used, last);
        if (state_ == State::kNoTrace) used = pending_.size();
        if (state_ == State::kFooter) {
            footer_size_ += pending_.size() - used;
            if (footer_.size() <= kLongestHeaderValue)  // more is no footer
                footer_.append(pending_.data() + used, pending_.size() - used);
            used = pending_.size();
        }
        pending_.erase(pending_.begin(), pending_.begin() + static_cast<ptrdiff_t>(used));
    }

    // Walks the keys of the outermost object up to its "traceEvents"; what is before that key is the header.
    size_t parse_header() {
        Cursor cursor{pending_.data() + header_done_, pending_.data() + pending_.size()};
        if (header_done_ == 0) {
            if (pending_.size() >= 3 && std::memcmp(pending_.data(), "\xef\xbb\xbf", 3) == 0) cursor.at += 3;
            if (!cursor.skip_space()) return pending_.size() < 3 ? 0 : pending_.size();  // blanks need not be kept
            if (*cursor.at == '[') {  // a bare list of events is a Chrome trace too
                state_ = State::kEvents;
                return offset(cursor.at) + 1;
            }
            if (*cursor.at != '{') return give_up();
            ++cursor.at;
        }
        for (;;) {
            if (!cursor.skip_space()) return wait_for_more();
            if (*cursor.at == ',') {
                ++cursor.at;
                continue;
            }
            if (*cursor.at != '"') return give_up();
            const char* key = cursor.at;
            if (!cursor.skip_string() || !cursor.skip_space()) return wait_for_more();
            const std::string_view name(key + 1, static_cast<size_t>(cursor.at - key) - 1);
            if (*cursor.at != ':') return give_up();
            ++cursor.at;
            if (!cursor.skip_space()) return wait_for_more();
            if (*cursor.at == '[' && name.substr(0, 12) == "traceEvents\"") {
                header_.assign(pending_.data(), offset(key));
                state_ = State::kEvents;
                return offset(cursor.at) + 1;
            }
            if (!cursor.skip_value()) return cursor.state == Parsed::kBroken ? give_up() : wait_for_more();
            header_done_ = offset(cursor.at);
        }
    }

    // An entry of the header has to end some time.
    size_t wait_for_more() { return pending_.size() - header_done_ > kLongestHeaderValue ? give_up() : 0; }

    // What is no trace is not kept.
    size_t give_up() {
        header_.assign(pending_.data(), pending_.size() < 4096 ? pending_.size() : 4096);
        state_ = State::kNoTrace;
        return pending_.size();
    }

    size_t parse_events(size_t used, bool last) {
        Cursor cursor{pending_.data() + used, pending_.data() + pending_.size()};
        for (;;) {
            const char* begin = cursor.at;
            cursor.state = Parsed::kWhole;
            cursor.plain = true;
            if (!cursor.skip_space()) return pending_.size();  // blanks and commas between events mean nothing
            if (*cursor.at == ',') {
                ++cursor.at;
                continue;
            }
            if (*cursor.at == ']') {
                state_ = State::kFooter;
                return offset(cursor.at) + 1;
            }
            begin = cursor.at;
            Event event;
            const bool whole = *begin == '{' ? parse_event(cursor, event) : cursor.fail(Parsed::kBroken);
            if (whole) {
                ++event_count_;
                if (!cursor.plain || !add(event)) keep_odd(begin, cursor.at);
                continue;
            }
            const auto length = static_cast<size_t>(cursor.end - begin);
            if (cursor.state == Parsed::kNeedsMore && !last && length < kLongestEvent) return offset(begin);
            // Looking on from inside a stretch without end may scan it once per event that seems to begin in it.
            if (cursor.state == Parsed::kNeedsMore) rescanned_ += length;
            const char* next = rescanned_ < kMostRescanned ? next_event(begin + 1, cursor.end) : nullptr;
            if (next == nullptr) {
                if (!last && length < kLongestEvent && rescanned_ < kMostRescanned) return offset(begin);
                if (const char* bracket = last ? end_of_list(begin + 1, cursor.end) : nullptr) {
                    keep_odd(begin, bracket);
                    cursor.at = bracket;
                    continue;
                }
                keep_odd(begin, cursor.end);
                return pending_.size();
            }
            keep_odd(begin, next);
            cursor.at = next;
        }
    }

    // Finds where the next event begins after one that cannot be read: `}, {"` does not occur in a plain event.
    static const char* next_event(const char* p, const char* end) {
        for (; p < end; ++p) {
            if (*p != '}') continue;
            const char* q = p + 1;
            while (q < end && is_space(*q)) ++q;
            if (q >= end || *q != ',') continue;
            ++q;
            while (q < end && is_space(*q)) ++q;
            if (q >= end || *q != '{') continue;
            const char* found = q++;
            while (q < end && is_space(*q)) ++q;
            if (q < end && *q == '"') return found;
        }
        return nullptr;
    }

    // Finds the bracket that ends the list after a last event that cannot be read.
    static const char* end_of_list(const char* p, const char* end) {
        for (; p < end; ++p) {
            if (*p != '}') continue;
            const char* q = p + 1;
            while (q < end && is_space(*q)) ++q;
            if (q < end && *q == ']') return q;
        }
        return nullptr;
    }

    void keep_odd(const char* begin, const char* end) {
        odd_.append(begin, end);
        odd_ends_.push_back(static_cast<int64_t>(odd_.size()));
    }

    size_t offset(const char* at) const { return static_cast<size_t>(at - pending_.data()); }

    // Adds an event to its table, if it belongs to one. Returns false for one that Python has to look at.
    bool add(const Event& event) {
        const std::string_view ph = event.ph ? event.ph.text() : std::string_view();
        if (ph == "\"X\"") return add_slice(event);
        if (ph == "\"B\"" || ph == "\"E\"") return !event.cat || category_at(event.cat.text()) == kIgnored;
        if (ph == "\"i\"" && event.name && event.name.text() == "\"[memory]\"") return add_allocation(event);
        return true;
    }

    bool add_slice(const Event& event) {
        Category category = event.cat ? category_at(event.cat.text()) : kIgnored;
        if (category == kIgnored) return true;
        int64_t start, duration;
        if (event.ts.is_null() || event.dur.is_null()) return false;
        if (!plain_identity(event.pid) || !plain_identity(event.tid)) return false;
        if (event.odd_args || !nanoseconds(event.ts, start) || !nanoseconds(event.dur, duration)) return false;
        if (start + duration <= -kLatest || start + duration >= kLatest) return false;
        if (event.name && *event.name.begin != '"') return false;
        const int32_t name = names_.code(event.name ? event.name.text() : std::string_view("\"\""));
        if (category == kOperator && is_step(name)) category = kAnnotation;
        switch (category) {
            case kOperator: return add_operator(event, name, start, duration);
            case kLaunch: return add_launch(event, name, start, duration);
            case kAnnotation: tables_[kAnnotations].add({start, duration}, {thread(event), name}); return true;
            case kFrame: tables_[kFrames].add({start, duration}, {thread(event), name}); return true;
            case kOverhead: tables_[kOverheads].add({start, duration}, {name}); return true;
            default: return add_activity(event, category, name, start, duration);
        }
    }

    bool add_operator(const Event& event, int32_t name, int64_t start, int64_t duration) {
        int64_t external, sequence, forward;
        if (!integer(event.external_id, external) || !integer(event.sequence, sequence) ||
            !integer(event.forward_thread, forward))
            return false;
        int32_t dims, types, strides, concrete;
        if (!list(event.dims ? event.dims : event.old_dims, dims) || !list(event.types, types) || !list(event.strides, strides) ||
            !list(event.concrete, concrete))
            return false;
        tables_[kOperators].add({start, duration, external, sequence, forward},
                                {thread(event), name, dims, types, strides, concrete, string(event.kernel_file)});
        return true;
    }

    bool add_launch(const Event& event, int32_t name, int64_t start, int64_t duration) {
        int64_t correlation, external;
        if (!ids(event, correlation, external)) return false;
        tables_[kLaunches].add({start, duration, correlation, external}, {thread(event), name});
        return true;
    }

    // Before PyTorch 1.13 the key was lower-case, and repeated the correlation id where there was no operator.
    static bool ids(const Event& event, int64_t& correlation, int64_t& external) {
        const bool old = !event.external_id && event.old_external_id;
        if (!integer(event.correlation, correlation)) return false;
        if (!integer(old ? event.old_external_id : event.external_id, external)) return false;
        if (old && external == correlation) external = kNull;
        return true;
    }

    bool add_activity(const Event& event, Category category, int32_t name, int64_t start, int64_t duration) {
        int64_t device, stream, correlation, external, graph, node, bytes, registers, shared;
        double occupancy;
        if (!integer(event.device, device, kInt32) || !integer(event.stream, stream) ||
            !ids(event, correlation, external) || !integer(event.graph, graph) || !integer(event.node, node) || !integer(event.bytes, bytes) ||
            !integer(event.registers, registers, kInt32) || !integer(event.shared_memory, shared) ||
            !decimal(event.occupancy, occupancy))
            return false;
        // Kineto repeats the device as the event's process and the stream as its thread; old traces have only those.
        if (device == kNull && !integer(event.pid, device, kInt32)) return false;
        if (stream == kNull && !integer(event.tid, stream)) return false;
        int32_t grid, block;
        if (!list(event.grid, grid) || !list(event.block, block)) return false;
        Columns& table = tables_[kActivities];
        table.add({device, stream, start, duration, correlation, external, graph, node, bytes, registers, shared, 0},
                  {static_cast<int32_t>(category - kKernel), name, grid, block, string(event.collective)});
        table.occupancy.push_back(occupancy);
        return true;
    }

    bool add_allocation(const Event& event) {
        int64_t time, type, device, bytes, total;
        if (event.ts.is_null() || !plain_identity(event.pid) || !plain_identity(event.tid)) return false;
        if (event.odd_args || !nanoseconds(event.ts, time) || !integer(event.device_type, type, kInt32) ||
            !integer(event.device_id, device, kInt32) || !integer(event.memory_bytes, bytes) ||
            !integer(event.total_allocated, total))
            return false;
        tables_[kAllocations].add({time, type, device, bytes, total}, {thread(event)});
        return true;
    }

    int32_t string(const Token& token) {
        return token && *token.begin == '"' ? texts_.code(token.text()) : kNoText;
    }

    bool list(const Token& token, int32_t& code) {
        code = kNoText;
        if (token.is_null()) return true;
        if (*token.begin != '[') return false;
        code = texts_.code(token.text());
        return true;
    }

    Category category_at(std::string_view token) {
        const auto code = static_cast<size_t>(categories_.code(token));
        if (code == category_codes_.size()) category_codes_.push_back(category_of(token));
        return category_codes_[code];
    }

    bool is_step(int32_t name) const { return names_.text(name).substr(0, 14) == "\"ProfilerStep#"; }

    // Numbers and plain text name a process or thread as they are written; anything else has several spellings.
    static bool plain_identity(const Token& token) {
        if (token.is_null()) return true;
        const std::string_view text = token.text();
        if (text[0] == '"') {
            for (char c : text.substr(1, text.size() - 2))
                if (c < ' ' || c > '~' || c == '\\') return false;
            return true;
        }
        return text.find_first_not_of("-0123456789") == std::string_view::npos;
    }

    // Numbers the pairs of process and thread from 0 as they appear. Neighbouring events mostly share theirs.
    int32_t thread(const Event& event) {
        const int32_t process = identities_.code(event.pid ? event.pid.text() : std::string_view("null"));
        const int32_t thread = identities_.code(event.tid ? event.tid.text() : std::string_view("null"));
        if (process == last_process_ && thread == last_thread_) return last_number_;
        last_process_ = process;
        last_thread_ = thread;
        for (size_t i = 0; i < threads_.size(); i += 2)
            if (threads_[i] == process && threads_[i + 1] == thread) return last_number_ = static_cast<int32_t>(i / 2);
        threads_.push_back(process);
        threads_.push_back(thread);
        return last_number_ = static_cast<int32_t>(threads_.size() / 2 - 1);
    }

    State state_ = State::kHeader;
    std::vector<char> pending_;
    size_t header_done_ = 0, header_retry_ = 0;
    Columns tables_[kTables];
    Interner names_, texts_, identities_, categories_;
    std::vector<Category> category_codes_;
    std::vector<int32_t> threads_;
    int32_t last_process_ = -1, last_thread_ = -1, last_number_ = -1;
    std::string header_, footer_, odd_;
    std::vector<int64_t> odd_ends_;
    int64_t event_count_ = 0;
    size_t rescanned_ = 0, footer_size_ = 0;
    bool truncated_ = false;
};

const Interner& strings(const Reader& reader, int which) {
    return which == 0 ? reader.names() : which == 1 ? reader.texts() : reader.identities();
}

}  // namespace

extern "C" {

int32_t opscope_kineto_version() { return 5; }
Reader* opscope_kineto_new() { return new Reader; }
void opscope_kineto_free(Reader* reader) {
    delete reader;
#ifdef __GLIBC__
    malloc_trim(0);  // growing columns leave holes in the heap as large as themselves
#endif
}
int32_t opscope_kineto_feed(Reader* reader, const char* data, size_t size) {
    return reader->guarded([&] { reader->feed(data, size); });
}
int32_t opscope_kineto_finish(Reader* reader) {
    return reader->guarded([&] { reader->finish(); });
}
int64_t opscope_kineto_event_count(const Reader* reader) { return reader->event_count(); }
int32_t opscope_kineto_truncated(const Reader* reader) { return reader->truncated(); }
int32_t opscope_kineto_found_events(const Reader* reader) { return reader->found_events(); }

const int64_t* opscope_kineto_numbers(const Reader* reader, int32_t table, int32_t column, size_t* size) {
    const auto& values = reader->table(table).numbers[static_cast<size_t>(column)];
    *size = values.size();
    return values.data();
}

const int32_t* opscope_kineto_codes(const Reader* reader, int32_t table, int32_t column, size_t* size) {
    const auto& values = reader->table(table).codes[static_cast<size_t>(column)];
    *size = values.size();
    return values.data();
}

const double* opscope_kineto_occupancy(const Reader* reader, size_t* size) {
    const auto& values = reader->table(kActivities).occupancy;
    *size = values.size();
    return values.data();
}

void opscope_kineto_release(Reader* reader, int32_t table) { reader->release(table); }

size_t opscope_kineto_string_count(const Reader* reader, int32_t which) { return strings(*reader, which).size(); }

const char* opscope_kineto_string(const Reader* reader, int32_t which, size_t code, size_t* size) {
    const std::string_view text = strings(*reader, which).text(code);
    *size = text.size();
    return text.data();
}

const int32_t* opscope_kineto_threads(const Reader* reader, size_t* size) {
    *size = reader->threads().size();
    return reader->threads().data();
}

const char* opscope_kineto_header(const Reader* reader, size_t* size) {
    *size = reader->header().size();
    return reader->header().data();
}

const char* opscope_kineto_footer(const Reader* reader, size_t* size) {
    *size = reader->footer().size();
    return reader->footer().data();
}

size_t opscope_kineto_footer_size(const Reader* reader) { return reader->footer_size(); }

const char* opscope_kineto_odd(const Reader* reader, size_t* size) {
    *size = reader->odd().size();
    return reader->odd().data();
}

const int64_t* opscope_kineto_odd_ends(const Reader* reader, size_t* size) {
    *size = reader->odd_ends().size();
    return reader->odd_ends().data();
}

void opscope_kineto_clear_odd(Reader* reader) { reader->clear_odd(); }
}

// Reads Kineto's trace events from JSON text into columns, piece by piece, in one pass.
//
// Only plain events are turned into rows here: numbers written as numbers, names as strings, arguments as an object.
// Any other event, and any stretch that is no event at all, is handed back as it stands ("odd"), and Python decides
// what it means. So every rule about odd data exists once, in readers/events.py, and this file stays a plain parser.
//
// Long files are cut into blocks where events seem to begin, and several threads turn blocks into rows, each with codes
// of its own. One thread then takes the blocks in order, and a block's rows only if what is before it was read exactly
// to where the block begins; otherwise it reads the block anew. So rows, codes and everything else come out as if one
// thread had read it all, however wrong a cut was.
//
// The interface is C, for ctypes: no Python header is needed, and one build serves every Python version.

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <iterator>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#ifdef __GLIBC__  // the headers above say so
#include <malloc.h>
#endif

#include "columns.h"

namespace {

constexpr int64_t kNull = INT64_MIN;
constexpr int32_t kNoText = -1;
constexpr int64_t kLatest = int64_t{1} << 62;       // as in readers/events.py
constexpr size_t kLongestEvent = size_t{16} << 20;  // more is a string that was never closed
constexpr size_t kMostRescanned = size_t{1} << 30;
constexpr size_t kBeginning = 4096;  // shows what a file is; its first piece may be shorter than a byte order mark
constexpr size_t kLongestHeaderValue = size_t{64} << 20;
constexpr size_t kBlocksBefore = 2;  // that one thread reads before it is helped
constexpr size_t kMoreBlocks = 3;    // than threads: one being filled, others ready for a thread or to be taken
constexpr size_t kMostInVain = 16;   // blocks read ahead, if more than half of all
constexpr size_t kRowsOfPart = size_t{1} << 16;
constexpr size_t kLargestSlab = size_t{16} << 20;

// ---------------------------------------------------------------- strings, each kept once

class Interner {
public:
    // One that does not keep its strings needs them to stay where they are.
    explicit Interner(bool keeps) : keeps_(keeps), slots_(1 << 12) {}

    int32_t code(std::string_view text) { return code(text, hash_of(text)); }

    int32_t code(std::string_view text, uint64_t hash) {
        size_t at = hash & (slots_.size() - 1);
        for (;; at = (at + 1) & (slots_.size() - 1)) {
            Slot& slot = slots_[at];
            if (slot.code < 0) break;
            if (slot.hash == hash && texts_[slot.code] == text) return slot.code;
        }
        const auto code = static_cast<int32_t>(texts_.size());
        if (keeps_) text = storage_.emplace_back(text);
        texts_.push_back(text);
        hashes_.push_back(hash);
        slots_[at] = {hash, code};
        if (texts_.size() * 2 > slots_.size()) grow();
        return code;
    }

    size_t size() const { return texts_.size(); }
    std::string_view text(size_t code) const { return texts_[code]; }

    // Takes over the strings of another; returns which code each of its codes is here.
    std::vector<int32_t> codes(const Interner& other) {
        std::vector<int32_t> found(other.size());
        for (size_t code = 0; code < found.size(); ++code)
            found[code] = this->code(other.texts_[code], other.hashes_[code]);
        return found;
    }

    void clear() {
        std::fill(slots_.begin(), slots_.end(), Slot());
        storage_.clear();
        texts_.clear();
        hashes_.clear();
    }

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

    bool keeps_;
    std::vector<Slot> slots_;
    std::deque<std::string> storage_;  // never moves its elements
    std::vector<std::string_view> texts_;
    std::vector<uint64_t> hashes_;
};

// ---------------------------------------------------------------- tables

// Everything about tables and columns is made of the one list of them in columns.h.

enum class ColumnKind : uint8_t { THREAD, NAME, TEXT, KIND, INT64, INT32, FLOAT64 };

// How a value is kept: as a number, as the code of something, or as a decimal.
template <ColumnKind kKind>
struct Kept {
    using Value = int32_t;
};
template <>
struct Kept<ColumnKind::INT64> {
    using Value = int64_t;
};
template <>
struct Kept<ColumnKind::INT32> {
    using Value = int64_t;
};
template <>
struct Kept<ColumnKind::FLOAT64> {
    using Value = double;
};

#define OPSCOPE_NUMBER(table, columns) k##table,
#define OPSCOPE_KIND(name, kind, meaning) ColumnKind::kind,
#define OPSCOPE_MEMBER(name, kind, meaning) Kept<ColumnKind::kind>::Value name;
#define OPSCOPE_VECTOR(name, kind, meaning) std::vector<Kept<ColumnKind::kind>::Value> name;
#define OPSCOPE_PUSH(name, kind, meaning) name.push_back(row.name);
#define OPSCOPE_VISIT(name, kind, meaning) visit(name);

// A row, and columns of rows.
#define OPSCOPE_DEFINE(table, columns)                                \
    constexpr ColumnKind kKindsOf##table[] = {columns(OPSCOPE_KIND)}; \
    struct table##Row {                                               \
        columns(OPSCOPE_MEMBER)                                       \
    };                                                                \
    struct table##Columns {                                           \
        size_t height = 0;                                            \
        columns(OPSCOPE_VECTOR) void add(const table##Row& row) {     \
            height += 1;                                              \
            columns(OPSCOPE_PUSH)                                     \
        }                                                             \
        template <typename Visit>                                     \
        void each(Visit visit) {                                      \
            columns(OPSCOPE_VISIT)                                    \
        }                                                             \
    };

enum Table { OPSCOPE_TABLES(OPSCOPE_NUMBER) kTables };
OPSCOPE_TABLES(OPSCOPE_DEFINE)

struct Tables {
#define OPSCOPE_TABLE(table, columns) table##Columns table;
    OPSCOPE_TABLES(OPSCOPE_TABLE)

    // Visits every table with its number.
    template <typename Visit>
    void each(Visit visit) {
#define OPSCOPE_VISIT_TABLE(table, columns) visit(k##table, table);
        OPSCOPE_TABLES(OPSCOPE_VISIT_TABLE)
    }
};

struct Layout {
    const ColumnKind* kinds;
    size_t count;

    static constexpr size_t width(ColumnKind kind) {
        const bool wide = kind == ColumnKind::INT64 || kind == ColumnKind::INT32 || kind == ColumnKind::FLOAT64;
        return wide ? sizeof(int64_t) : sizeof(int32_t);
    }

    // The bytes of a row before a column.
    constexpr size_t before(size_t column) const {
        size_t bytes = 0;
        for (size_t at = 0; at < column; ++at) bytes += width(kinds[at]);
        return bytes;
    }

    constexpr size_t row_size() const { return before(count); }
};

#define OPSCOPE_LAYOUT(table, columns) Layout{kKindsOf##table, std::size(kKindsOf##table)},
constexpr Layout kLayouts[kTables] = {OPSCOPE_TABLES(OPSCOPE_LAYOUT)};

enum Category : uint8_t {
    kIgnored,
    kOperator,
    kLaunch,
    kKernel,
    kMemcpy,
    kMemset,
    kAnnotation,
    kRange,
    kFrame,
    kOverhead,
    kSynchronization,
    kGraphHostNode
};

Category category_of(std::string_view token) {
    struct Known {
        const char* text;
        Category category;
    };
    // Capitalised names were written before PyTorch 1.13.
    static constexpr Known known[] = {
        {"cpu_op", kOperator},
        {"Operator", kOperator},
        {"cuda_runtime", kLaunch},
        {"cuda_driver", kLaunch},
        {"hip_runtime", kLaunch},
        {"hip_driver", kLaunch},
        {"xpu_runtime", kLaunch},
        {"xpu_driver", kLaunch},
        {"privateuse1_runtime", kLaunch},
        {"privateuse1_driver", kLaunch},
        {"Runtime", kLaunch},
        {"kernel", kKernel},
        {"Kernel", kKernel},
        {"gpu_memcpy", kMemcpy},
        {"Memcpy", kMemcpy},
        {"gpu_memset", kMemset},
        {"Memset", kMemset},
        {"user_annotation", kAnnotation},
        {"python_function", kFrame},
        {"python_func", kFrame},
        {"overhead", kOverhead},
        {"Overhead", kOverhead},
        {"nvtx_range", kRange},
        {"cuda_sync", kSynchronization},
        {"graph_host_node", kGraphHostNode},
    };
    for (const Known& entry : known)
        if (token.size() >= 2 && token.substr(1, token.size() - 2) == entry.text) return entry.category;
    return kIgnored;
}

// ---------------------------------------------------------------- one event

// As ==, but compiled to a few instructions, as the length is known.
template <size_t kSize>
inline bool is(std::string_view text, const char (&other)[kSize]) {
    return text.size() == kSize - 1 && std::memcmp(text.data(), other, kSize - 1) == 0;
}

struct Token {
    const char* begin = nullptr;
    const char* end = nullptr;
    explicit operator bool() const { return begin != nullptr; }
    std::string_view text() const { return {begin, static_cast<size_t>(end - begin)}; }
    bool is_null() const { return !begin || is(text(), "null"); }
};

// The fields of one event, as they are written. Which are present depends on the category.
struct Event {
    Token ph, cat, name, pid, tid, ts, dur, args;
    Token external_id, old_external_id, correlation, sequence, forward_thread, dims, old_dims, types, strides, concrete,
        kernel_file, device, stream, original_stream, context, graph, node, bytes, grid, block, registers,
        shared_memory, occupancy, collective, memory_bytes, total_allocated, total_reserved, address, device_id,
        device_type, elements_in, elements_out, element_type, awaited_stream, recorded_by, awaited_event, group,
        group_description, group_ranks, group_size, group_rank, first_rank, rank_stride, communication_sequence,
        splits_in, splits_out, source_rank, destination_rank, copy_kind, copy_source, copy_target, value;
    bool odd_args = false, has_args = false;
    int arguments = 0;  // how many; the value of the last one
};

enum class Parsed { kWhole, kNeedsMore, kBroken };

// What a character may be: looked up at once, where comparing it with one after the other takes several steps.
enum Kind : uint8_t {
    kSpace = 1,
    kEndsValue = 2,
    kInNumber = 4,
    kInIdentity = 8,
    kOpens = 16,
    kCloses = 32,
    kQuote = 64,
    kInList = 128,
};

struct Kinds {
    uint8_t of[256] = {};

    constexpr Kinds() {
        set(" \n\r\t", kSpace | kEndsValue);
        set(",}]\":", kEndsValue);
        set("0123456789-", kInNumber | kInIdentity | kInList);
        set(",", kInList);
        set(".eE+", kInNumber);
        set("{[", kOpens);
        set("}]", kCloses);
        set("\"", kQuote);
    }

    constexpr void set(std::string_view characters, int kinds) {
        for (char c : characters) of[static_cast<uint8_t>(c)] |= static_cast<uint8_t>(kinds);
    }
};

constexpr Kinds kKinds;

inline uint8_t kinds_of(char c) { return kKinds.of[static_cast<uint8_t>(c)]; }
inline bool is_digit(char c) { return c >= '0' && c <= '9'; }
inline bool is_space(char c) { return kinds_of(c) & kSpace; }

inline bool all_are(std::string_view text, Kind kind) {
    uint8_t kinds = kind;
    for (char c : text) kinds &= kinds_of(c);
    return kinds != 0;
}

// NaN and infinities, as JavaScript, Python and C write them.
bool is_no_number(std::string_view text) {
    if (text[0] == '-' || text[0] == '+') text.remove_prefix(1);
    char lower[8];
    if (text.size() != 3 && text.size() != 8) return false;
    for (size_t i = 0; i < text.size(); ++i) lower[i] = static_cast<char>(text[i] | 0x20);
    const std::string_view word(lower, text.size());
    return is(word, "nan") || is(word, "inf") || is(word, "infinity");
}

// Reads JSON text that may end anywhere. `end` is the end of what has arrived; `at` only ever moves forward.
struct Cursor {
    const char* at;
    const char* end;
    Parsed state = Parsed::kWhole;
    bool plain = true;     // whether every bare value so far was a number, true, false or null
    bool escaped = false;  // whether the last string had a backslash

    bool fail(Parsed why) {
        state = why;
        return false;
    }

    // After a value that was not wanted, or that is not whole.
    bool fail_unless_short() { return fail(state == Parsed::kNeedsMore ? state : Parsed::kBroken); }

    bool skip_space() {
        while (at < end && is_space(*at)) ++at;
        return at < end || fail(Parsed::kNeedsMore);
    }

    // `at` is on an opening quote; moves past the closing one.
    bool skip_string() {
        for (++at; to_quote(); ++at) {
            if (*at == '"') {
                ++at;
                return true;
            }
            escaped = true;
            if (++at >= end) break;
        }
        return fail(Parsed::kNeedsMore);
    }

    // Moves to the next quote or backslash; false at the end.
    bool to_quote() {
#ifdef __SSE2__
        // Sixteen characters at a time.
        for (; end - at >= 16; at += 16) {
            const __m128i text = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
            const __m128i found =
                _mm_or_si128(_mm_cmpeq_epi8(text, _mm_set1_epi8('"')), _mm_cmpeq_epi8(text, _mm_set1_epi8('\\')));
            if (const auto mask = static_cast<unsigned>(_mm_movemask_epi8(found))) {
                at += __builtin_ctz(mask);
                return true;
            }
        }
#endif
        // Eight, at the end of the text and where the processor has no such instructions.
        for (; end - at >= 8; at += 8) {
            uint64_t word;
            std::memcpy(&word, at, 8);
            const uint64_t found = bytes_like(word, '"') | bytes_like(word, '\\');
            if (found == 0) continue;
            at += first_byte(found);
            break;
        }
        while (at < end && *at != '"' && *at != '\\') ++at;
        return at < end;
    }

    // `at` is on any value; moves past it.
    bool skip_value() {
        if (*at == '"') return skip_string();
        if (*at == '{' || *at == '[') return skip_container();
        return skip_word();
    }

    // `at` is on a value that is neither text nor a container.
    bool skip_word() {
        const char* begin = at;
        if (skip_number()) return true;
        while (at < end && !(kinds_of(*at) & kEndsValue)) ++at;
        if (at >= end) return fail(Parsed::kNeedsMore);
        if (at == begin) return fail(Parsed::kBroken);
        plain = plain && is_plain({begin, static_cast<size_t>(at - begin)});
        return true;
    }

    // Moves past a plain number; false where anything else stands there, or text that may go on.
    bool skip_number() {
        const char* p = at + (*at == '-');
        if (end - p < 2 || !is_digit(*p) || (*p == '0' && is_digit(p[1]))) return false;
        while (p < end && kinds_of(*p) & kInNumber) ++p;
        if (p == end || !(kinds_of(*p) & kEndsValue)) return false;
        at = p;
        return true;
    }

    // Without recursion, however deep. What opens has to be closed in kind, and commas and colons to stand between
    // values: a quote too many must not make one event of several.
    bool skip_container() {
        std::vector<bool> deeper;  // which of those that are open are objects, beyond the innermost 64
        uint64_t objects = 0;      // the same of the innermost ones, the last one in the lowest bit
        size_t depth = 0;
        bool wants_value = true, just_opened = false;
        while (at < end) {
            const char c = *at;
            const uint8_t kinds = kinds_of(c);
            if (kinds & kSpace) {
                ++at;
            } else if (kinds & kInList) {  // most of what is there: numbers between commas
                if (c == ',') {
                    if (wants_value) return fail(Parsed::kBroken);
                    wants_value = true;
                    just_opened = false;
                    ++at;
                    continue;
                }
                if (!wants_value || !skip_word()) return fail_unless_short();
                wants_value = false;
            } else if (kinds & kOpens) {
                if (!wants_value) return fail(Parsed::kBroken);
                if (depth >= 64) deeper.push_back(objects >> 63);
                objects = objects << 1 | (c == '{');
                ++depth;
                ++at;
                just_opened = true;
            } else if (kinds & kCloses) {
                if ((wants_value && !just_opened) || (objects & 1) != (c == '}')) return fail(Parsed::kBroken);
                ++at;
                if (--depth == 0) return true;
                objects >>= 1;
                if (depth >= 64) {
                    objects |= static_cast<uint64_t>(deeper.back()) << 63;
                    deeper.pop_back();
                }
                wants_value = just_opened = false;
            } else if (c == ':') {
                if (wants_value || !(objects & 1)) return fail(Parsed::kBroken);
                wants_value = true;
                just_opened = false;
                ++at;
            } else {
                if (!wants_value || !(kinds & kQuote ? skip_string() : skip_word())) return fail_unless_short();
                wants_value = false;
            }
        }
        return fail(Parsed::kNeedsMore);
    }

    // Calls `field(key, token)` for each entry of the object that `at` is on.
    template <typename Field>
    bool each_field(Field field) {
        bool first = true;
        for (++at;; first = false) {
            if (!skip_space()) return false;
            if (*at == '}' && first) {
                ++at;
                return true;
            }
            if (*at != '"') return fail(Parsed::kBroken);
            const char* key = at + 1;
            escaped = false;
            if (!skip_string()) return false;
            plain = plain && !escaped;  // a key may be spelled in several ways
            const std::string_view name(key, static_cast<size_t>(at - 1 - key));
            if (!skip_space()) return false;
            if (*at != ':') return fail(Parsed::kBroken);
            ++at;
            if (!skip_space()) return false;
            if (!field(name)) return false;
            if (!skip_space()) return false;
            if (*at == '}') {
                ++at;
                return true;
            }
            if (*at != ',') return fail(Parsed::kBroken);
            ++at;
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
        if (is(text, "true") || is(text, "false") || is(text, "null")) return true;
        if (is_no_number(text)) return true;
        if (text[0] == '-') text.remove_prefix(1);
        if (text.empty() || text[0] < '0' || text[0] > '9') return false;
        if (text[0] == '0' && text.size() > 1 && text[1] >= '0' && text[1] <= '9') return false;
        return all_are(text, kInNumber);
    }

    // Sets the highest bit of each byte that is the wanted one, and perhaps of some behind the first of them.
    static uint64_t bytes_like(uint64_t word, char wanted) {
        const uint64_t x = word ^ (0x0101010101010101ull * static_cast<uint8_t>(wanted));
        return (x - 0x0101010101010101ull) & ~x & 0x8080808080808080ull;
    }

    static size_t first_byte(uint64_t found) {
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
        return static_cast<size_t>(__builtin_ctzll(found)) / 8;
#else
        return 0;  // it is looked for one by one
#endif
    }
};

Token* argument_of(Event& event, std::string_view key) {
    switch (key.size()) {
        case 3: return is(key, "Seq") ? &event.communication_sequence : nullptr;
        case 4:
            if (is(key, "grid")) return &event.grid;
            if (is(key, "Rank")) return &event.group_rank;
            return is(key, "Addr") ? &event.address : nullptr;
        case 5:
            if (is(key, "block")) return &event.block;
            if (is(key, "bytes")) return &event.bytes;
            if (is(key, "dtype")) return &event.element_type;
            return is(key, "Bytes") ? &event.memory_bytes : nullptr;
        case 6: return is(key, "device") ? &event.device : is(key, "stream") ? &event.stream : nullptr;
        case 7: return is(key, "context") ? &event.context : nullptr;
        case 8:
            if (is(key, "graph id")) return &event.graph;
            if (is(key, "src kind")) return &event.copy_source;
            if (is(key, "dst kind")) return &event.copy_target;
            if (is(key, "Src Rank")) return &event.source_rank;
            return is(key, "Dst Rank") ? &event.destination_rank : nullptr;
        case 9:
            if (is(key, "copy kind")) return &event.copy_kind;
            return is(key, "Device Id") ? &event.device_id : nullptr;
        case 10:
            if (is(key, "Input Dims")) return &event.dims;
            if (is(key, "Input dims")) return &event.old_dims;
            if (is(key, "Group size")) return &event.group_size;
            return is(key, "Input type") ? &event.types : nullptr;
        case 11:
            if (is(key, "External id")) return &event.external_id;
            if (is(key, "external id")) return &event.old_external_id;
            if (is(key, "correlation")) return &event.correlation;
            if (is(key, "kernel_file")) return &event.kernel_file;
            return is(key, "Device Type") ? &event.device_type : nullptr;
        case 13:
            if (is(key, "Fwd thread id")) return &event.forward_thread;
            if (is(key, "Input Strides")) return &event.strides;
            if (is(key, "graph node id")) return &event.node;
            if (is(key, "In msg nelems")) return &event.elements_in;
            if (is(key, "In split size")) return &event.splits_in;
            return is(key, "shared memory") ? &event.shared_memory : nullptr;
        case 14:
            if (is(key, "wait_on_stream")) return &event.awaited_stream;
            if (is(key, "Total Reserved")) return &event.total_reserved;
            if (is(key, "Out split size")) return &event.splits_out;
            return is(key, "Out msg nelems") ? &event.elements_out : nullptr;
        case 15:
            if (is(key, "Sequence number")) return &event.sequence;
            if (is(key, "original_stream")) return &event.original_stream;
            if (is(key, "Collective name")) return &event.collective;
            if (is(key, "Concrete Inputs")) return &event.concrete;
            return is(key, "Total Allocated") ? &event.total_allocated : nullptr;
        case 17: return is(key, "Global rank start") ? &event.first_rank : nullptr;
        case 18:
            if (is(key, "Process Group Name")) return &event.group;
            return is(key, "Global rank stride") ? &event.rank_stride : nullptr;
        case 19: return is(key, "Process Group Ranks") ? &event.group_ranks : nullptr;
        case 21: return is(key, "wait_on_cuda_event_id") ? &event.awaited_event : nullptr;
        case 33: return is(key, "wait_on_cuda_event_record_corr_id") ? &event.recorded_by : nullptr;
        case 20: return is(key, "registers per thread") ? &event.registers : nullptr;
        case 25:
            if (is(key, "Process Group Description")) return &event.group_description;
            return is(key, "est. achieved occupancy %") ? &event.occupancy : nullptr;
        default: return nullptr;
    }
}

Token* field_of(Event& event, std::string_view key) {
    switch (key.size()) {
        case 2: return is(key, "ph") ? &event.ph : is(key, "ts") ? &event.ts : nullptr;
        case 3:
            if (is(key, "cat")) return &event.cat;
            if (is(key, "pid")) return &event.pid;
            if (is(key, "tid")) return &event.tid;
            return is(key, "dur") ? &event.dur : nullptr;
        case 4: return is(key, "name") ? &event.name : nullptr;
        default: return nullptr;
    }
}

// PyTorch 2.15 names every copy "Memcpy" and says in its arguments what older versions say in the name. Returns that
// name as JSON, or nothing if Python has to look at the event.
std::string_view name_of_copy(const Event& event) {
    static constexpr std::string_view kinds[] = {"HtoD", "DtoH", "HtoA", "AtoH", "AtoA",
                                                 "AtoD", "DtoA", "DtoD", "PtoP"};
    static constexpr std::string_view memories[][2] = {{"unknown", "Unknown"},
                                                       {"pageable", "Pageable"},
                                                       {"pinned", "Pinned"},
                                                       {"device", "Device"},
                                                       {"array", "Array"},
                                                       {"managed", "Managed"},
                                                       {"device_static", "Device Static"},
                                                       {"managed_static", "Managed Static"}};
    static const std::vector<std::string> names = [] {
        std::vector<std::string> all;
        for (const auto& kind : kinds)
            for (const auto& source : memories)
                for (const auto& target : memories)
                    all.push_back("\"Memcpy " + std::string(kind) + " (" + std::string(source[1]) + " -> " +
                                  std::string(target[1]) + ")\"");
        return all;
    }();
    const auto inside = [](const Token& token) {
        const auto text = token ? token.text() : std::string_view();
        return text.size() > 2 && text.front() == '"' ? text.substr(1, text.size() - 2) : std::string_view();
    };
    const auto memory_at = [&](const Token& token) {
        const auto text = inside(token);
        size_t at = 0;
        while (at < std::size(memories) && memories[at][0] != text) ++at;
        return at;
    };
    const auto text = inside(event.copy_kind);
    size_t kind = 0;
    while (kind < std::size(kinds) && kinds[kind] != text) ++kind;
    const size_t source = memory_at(event.copy_source), target = memory_at(event.copy_target);
    if (kind == std::size(kinds) || source == std::size(memories) || target == std::size(memories)) return {};
    return names[(kind * std::size(memories) + source) * std::size(memories) + target];
}

bool parse_event(Cursor& cursor, Event& event) {
    return cursor.each_field([&](std::string_view key) {
        if (is(key, "args")) {
            cursor.plain = cursor.plain && !event.has_args;  // the last ones count
            event.has_args = true;
        }
        if (is(key, "args") && *cursor.at == '{') {
            event.odd_args = false;
            return cursor.each_field([&](std::string_view name) {
                Token unused;
                Token* token = argument_of(event, name);
                Token& value = token ? *token : unused;
                if (!cursor.value(value)) return false;
                event.value = value;
                ++event.arguments;
                return true;
            });
        }
        Token unused;
        if (is(key, "args")) {
            if (!cursor.value(unused)) return false;
            event.odd_args = !unused.is_null();
            return true;
        }
        Token* token = field_of(event, key);
        return cursor.value(token ? *token : unused);
    });
}

// ---------------------------------------------------------------- values

// A number may be written as text.
Token unquoted(const Token& token) { return *token.begin == '"' ? Token{token.begin + 1, token.end - 1} : token; }

// Each returns whether the token is plain; the value is kNull where it is absent, null or too large to be kept.

bool integer(const Token& written, int64_t& value, int64_t largest = INT64_MAX) {
    value = kNull;
    if (written.is_null()) return true;
    const Token token = unquoted(written);
    const char* p = token.begin;
    const bool negative = *p == '-';
    p += negative;
    if (p == token.end || token.end - p > 20) return false;
    if (token.end - p <= 18) {  // nearly all, and any such number is one of 64 bits
        int64_t small = 0;
        for (; p < token.end && is_digit(*p); ++p) small = small * 10 + (*p - '0');
        if (p < token.end) return is_no_number(written.text());
        if (small <= largest) value = negative ? -small : small;
        return true;
    }
    unsigned __int128 digits = 0;
    for (; p < token.end; ++p) {
        if (!is_digit(*p)) return is_no_number(written.text());
        digits = digits * 10 + static_cast<unsigned>(*p - '0');
    }
    if (digits > static_cast<unsigned __int128>(largest)) return true;  // an unset id is written as 2**64 - 1
    value = negative ? -static_cast<int64_t>(digits) : static_cast<int64_t>(digits);
    return true;
}

constexpr int64_t kMostElements = int64_t{1} << 48;

// Bytes of an element of a collective, by PyTorch's name of the type; 0 where that is not known.
int64_t element_size(const Token& type) {
    if (*type.begin != '"' || type.text().size() < 2) return 0;
    const std::string_view name = type.text().substr(1, type.text().size() - 2);
    constexpr std::pair<std::string_view, int64_t> kSizes[] = {
        {"Byte", 1}, {"Char", 1},     {"Bool", 1}, {"Float8_e4m3fn", 1}, {"Float8_e5m2", 1}, {"Short", 2},
        {"Half", 2}, {"BFloat16", 2}, {"Int", 4},  {"Float", 4},         {"Long", 8},        {"Double", 8}};
    for (const auto& [known, size] : kSizes)
        if (name == known) return size;
    return 0;
}

// Microseconds as decimal text -> integer nanoseconds, rounded to the nearest one.
bool nanoseconds(const Token& written, int64_t& value) {
    const Token token = unquoted(written);
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
            if (decimals++ == 3)
                fourth = *p;
            else
                more |= *p != '0';
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
    const char first = *token.begin == '-' ? token.begin[1] : *token.begin;
    if (first < '0' || first > '9') return is_no_number(token.text());
    const std::string text(token.text());
    char* end = nullptr;
    value = std::strtod(text.c_str(), &end);
    return end == text.c_str() + text.size() && std::isfinite(value);
}

constexpr int64_t kInt32 = INT32_MAX;

// ---------------------------------------------------------------- between events

// Finds where the next event begins after one that cannot be read: `}, {"` does not occur in a plain event.
const char* next_event(const char* p, const char* end) {
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
const char* end_of_list(const char* p, const char* end) {
    for (; p < end; ++p) {
        if (*p != '}') continue;
        const char* q = p + 1;
        while (q < end && is_space(*q)) ++q;
        if (q < end && *q == ']') return q;
    }
    return nullptr;
}

// Finds the last place where an event seems to begin in the same way, but for the very beginning.
const char* last_event(const char* begin, const char* end) {
    for (const char* p = end; p != begin;) {
        if (*--p != '{') continue;
        const char* q = p;
        while (q != begin && is_space(q[-1])) --q;
        if (q == begin || *--q != ',') continue;
        while (q != begin && is_space(q[-1])) --q;
        if (q == begin || *--q != '}') continue;
        for (q = p + 1; q < end && is_space(*q);) ++q;
        if (q < end && *q == '"') return p;
    }
    return nullptr;
}

// ---------------------------------------------------------------- rows

// Memory that goes back to the system when it is freed. The heap keeps what threads other than the first one free: as
// much as all columns, while the analysis needs it.
class Store {
public:
    Store() = default;
    Store(const Store&) = delete;
    Store& operator=(const Store&) = delete;
    ~Store() { clear(); }

    char* take(size_t size) {
        const std::lock_guard<std::mutex> lock(mutex_);
        size = (size + 7) / 8 * 8;
        if (size > left_) {
            // Few large stretches, and little that stays unused of a small file's.
            left_ = std::max(size, std::min(taken_, kLargestSlab));
            slabs_.reserve(slabs_.size() + 1);
            void* slab = mmap(nullptr, left_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            if (slab == MAP_FAILED) {
                left_ = 0;
                throw std::bad_alloc();
            }
            slabs_.emplace_back(slab, left_);
            next_ = static_cast<char*>(slab);
        }
        char* taken = next_;
        next_ += size;
        left_ -= size;
        taken_ += size;
        return taken;
    }

    void clear() {
        for (const auto& [slab, size] : slabs_) munmap(slab, size);
        slabs_.clear();
        left_ = taken_ = 0;
    }

private:
    std::mutex mutex_;
    std::vector<std::pair<void*, size_t>> slabs_;
    char* next_ = nullptr;
    size_t left_ = 0, taken_ = 0;
};

// Rows that do not change any more, in as much memory as they need: per table one column after the other.
struct Part {
    struct Codes {
        std::vector<int32_t> names, texts, threads;
    };

    size_t heights[kTables] = {};
    char* values[kTables] = {};          // in the table's store
    std::unique_ptr<const Codes> codes;  // what their codes are in the end, if these are those of a block
};

// Which slices become rows; the others are counted and left out. See readers/unpacked.py.
struct Wanted {
    bool all = true, outline = false;
    int64_t begin = 0, end = 0;                // of what begins on the host
    int64_t near_begin = 0, near_end = 0;      // of what runs on the host
    int64_t queued_begin = 0, queued_end = 0;  // of calls, and of the work that they launch
};

// From when to when slices of some kind ran; nothing where the first moment is after the last one.
struct Extent {
    int64_t first = INT64_MAX, last = INT64_MIN;

    void add(const Extent& other) {
        first = std::min(first, other.first);
        last = std::max(last, other.last);
    }
};

// The numbers of extents in the interface: of all slices, of operators, calls and ranges together, of operators, and of
// frames. All but the first leave out records that cannot be true (analysis/trust/plausible.py).
enum ExtentOf : int32_t { kOfAll, kOfHost, kOfOperators, kOfFrames, kExtents };
constexpr int64_t kLongestRecord = int64_t{30} * 24 * 3600 * 1000000000;

// What a stretch of events comes to: rows, and the strings and threads that their codes stand for, as they appear.
class Rows {
public:
    // Strings that are not kept have to stay where they are until `clear`.
    Rows(bool keeps_strings, const Wanted& wanted)
        : wanted_(wanted),
          names_(keeps_strings),
          texts_(keeps_strings),
          identities_(keeps_strings),
          categories_(true) {}

    enum class Stop { kEnd, kBracket, kNeedsMore, kBroken };

    // Reads events up to the end, the end of their list, or one that is not whole; the cursor is there then.
    Stop read(Cursor& cursor) {
        for (;;) {
            cursor.state = Parsed::kWhole;
            cursor.plain = true;
            if (!cursor.skip_space()) return Stop::kEnd;  // blanks and commas between events mean nothing
            if (*cursor.at == ',') {
                ++cursor.at;
                continue;
            }
            if (*cursor.at == ']') return Stop::kBracket;
            const char* begin = cursor.at;
            Event event;
            const bool whole = *begin == '{' ? parse_event(cursor, event) : cursor.fail(Parsed::kBroken);
            if (!whole) {
                cursor.at = begin;
                return cursor.state == Parsed::kNeedsMore ? Stop::kNeedsMore : Stop::kBroken;
            }
            if (cursor.plain && add(event))
                ++plain_count_;
            else
                keep_odd(begin, cursor.at);
        }
    }

    void keep_odd(const char* begin, const char* end) {
        odd_.append(begin, end);
        odd_ends_.push_back(static_cast<int64_t>(odd_.size()));
    }

    // Takes over everything but the columns of the rows that come next; returns what their codes are here.
    Part::Codes follow(const Rows& other) {
        Part::Codes codes;
        codes.names = names_.codes(other.names_);
        codes.texts = texts_.codes(other.texts_);
        const std::vector<int32_t> identities = identities_.codes(other.identities_);
        for (size_t i = 0; i < other.threads_.size(); i += 2)
            codes.threads.push_back(thread(identities[static_cast<size_t>(other.threads_[i])],
                                           identities[static_cast<size_t>(other.threads_[i + 1])]));
        plain_count_ += other.plain_count_;
        for (int32_t which = 0; which < kExtents; ++which) extents_[which].add(other.extents_[which]);
        for (size_t i = 0; i < other.ignored_.size(); ++i)
            if (other.ignored_[i] != 0) ignored_[category_at(other.categories_.text(i))] += other.ignored_[i];
        const auto before = static_cast<int64_t>(odd_.size());
        odd_.append(other.odd_);
        for (int64_t end : other.odd_ends_) odd_ends_.push_back(before + end);
        return codes;
    }

    // Moves the columns into a part, each table's to its store.
    Part packed(Store* stores) {
        Part part;
        tables_.each([&](Table which, auto& table) {
            part.heights[which] = table.height;
            if (table.height == 0) return;
            char* to = part.values[which] = stores[which].take(kLayouts[which].row_size() * table.height);
            table.each([&](auto& column) {
                const size_t bytes = column.size() * sizeof(column[0]);
                std::memcpy(to, column.data(), bytes);
                to += bytes;
            });
        });
        clear_tables();
        return part;
    }

    void clear() {
        clear_tables();
        std::fill(ignored_.begin(), ignored_.end(), 0);
        names_.clear();
        texts_.clear();
        identities_.clear();
        threads_.clear();
        thread_numbers_.clear();
        last_process_ = last_thread_ = last_number_ = -1;
        plain_count_ = 0;
        std::fill(std::begin(extents_), std::end(extents_), Extent());
        clear_odd();
    }

    void clear_odd() {
        odd_.clear();
        odd_ends_.clear();
    }

    // Of all tables together.
    size_t height() {
        size_t height = 0;
        tables_.each([&](Table, auto& table) { height += table.height; });
        return height;
    }

    const Interner& names() const { return names_; }
    const Interner& texts() const { return texts_; }
    const Interner& identities() const { return identities_; }
    const Interner& categories() const { return categories_; }
    // Per category how many slices there were that belong to no table.
    const std::vector<int64_t>& ignored() const { return ignored_; }
    const std::vector<int32_t>& threads() const { return threads_; }
    const std::string& odd() const { return odd_; }
    const std::vector<int64_t>& odd_ends() const { return odd_ends_; }
    int64_t plain_count() const { return plain_count_; }
    // Also of slices that were left out; only where not all are kept.
    const Extent& extent(int32_t which) const { return extents_[which]; }

private:
    static bool has_escape(const Token& token) {
        return token && std::memchr(token.begin, '\\', static_cast<size_t>(token.end - token.begin)) != nullptr;
    }

    bool begun_ = false;  // whether a known slice began apart from its end

    // Adds an event to its table, if it belongs to one. Returns false for one that Python has to look at.
    bool add(const Event& event) {
        const std::string_view ph = event.ph ? event.ph.text() : std::string_view();
        if (has_escape(event.ph) || has_escape(event.cat)) return false;
        if (is(ph, "\"i\"") && has_escape(event.name)) return false;
        if (is(ph, "\"X\"")) return add_slice(event);
        // Python joins a begin and its end, which may leave its category out.
        if (is(ph, "\"B\"") || is(ph, "\"E\"")) {
            if (!event.cat) return !begun_ || is(ph, "\"B\"");
            const bool known_category = category_codes_[category_at(event.cat.text())] != kIgnored;
            begun_ |= known_category;
            return !known_category;
        }
        if (is(ph, "\"i\"") && event.name && event.name.text() == "\"[memory]\"") return add_allocation(event);
        if (is(ph, "\"C\"")) return add_counter(event);
        return true;
    }

    bool add_slice(const Event& event) {
        // Slices without a category are counted as those of an empty one.
        const size_t code = category_at(event.cat ? event.cat.text() : std::string_view("\"\""));
        Category category = category_codes_[code];
        if (category == kIgnored) {
            ++ignored_[code];
            return true;
        }
        if (category == kGraphHostNode) return false;  // few, and Python knows their thread
        int64_t start, duration;
        if (event.ts.is_null() || event.dur.is_null()) return false;
        if (!plain_identity(event.pid) || !plain_identity(event.tid)) return false;
        if (event.odd_args || !nanoseconds(event.ts, start) || !nanoseconds(event.dur, duration)) return false;
        if (start + duration <= -kLatest || start + duration >= kLatest) return false;
        if (event.name && *event.name.begin != '"') return false;
        if (!wanted_.all && !wants(event, category, start, duration)) return true;
        if (category == kOperator && event.name && may_be_step_in_disguise(event.name.text())) return false;
        std::string_view named = event.name ? event.name.text() : std::string_view("\"\"");
        if (category == kMemcpy && event.copy_kind && is(named, "\"Memcpy\"")) {
            named = name_of_copy(event);
            if (named.empty()) return false;
        }
        const int32_t name = names_.code(named);
        if (category == kOperator && is_step(name)) category = kAnnotation;
        switch (category) {
            case kOperator: return add_operator(event, name, start, duration);
            case kLaunch: return add_launch(event, name, start, duration);
            case kAnnotation:
                tables_.Annotations.add(
                    {.thread = thread(event), .name = name, .start_ns = start, .duration_ns = duration});
                return true;
            case kRange:
                tables_.Ranges.add({.thread = thread(event), .name = name, .start_ns = start, .duration_ns = duration});
                return true;
            case kFrame:
                tables_.Frames.add({.thread = thread(event), .name = name, .start_ns = start, .duration_ns = duration});
                return true;
            case kOverhead:
                tables_.Overheads.add({.name = name, .start_ns = start, .duration_ns = duration});
                return true;
            case kSynchronization: return add_synchronization(event, name, start, duration);
            default: return add_activity(event, category, name, start, duration);
        }
    }

    bool wants(const Event& event, Category category, int64_t start, int64_t duration) {
        const int64_t end = start + std::max(duration, int64_t{0});
        extents_[kOfAll].add({start, end});
        if (duration >= 0 && duration <= kLongestRecord) {
            if (category == kOperator || category == kLaunch || category == kAnnotation)
                extents_[kOfHost].add({start, end});
            if (category == kOperator) extents_[kOfOperators].add({start, end});
            if (category == kFrame) extents_[kOfFrames].add({start, end});
        }
        const bool queued = category == kLaunch || (category >= kKernel && category <= kMemset);
        if (wanted_.outline) {
            if (queued) return true;
            if (!event.name || (category != kAnnotation && category != kOperator)) return false;
            return names_step(event.name.text()) || may_be_step_in_disguise(event.name.text());
        }
        if (queued) return start >= wanted_.queued_begin && start < wanted_.queued_end;
        return end >= wanted_.near_begin && start < wanted_.near_end;
    }

    bool add_operator(const Event& event, int32_t name, int64_t start, int64_t duration) {
        int64_t external, sequence, forward, message;
        if (!integer(event.external_id, external) || !integer(event.sequence, sequence) ||
            !integer(event.forward_thread, forward) || !moved(event, message))
            return false;
        int32_t dims, types, strides, concrete;
        if (!list(event.dims ? event.dims : event.old_dims, dims) || !list(event.types, types) ||
            !list(event.strides, strides) || !list(event.concrete, concrete) ||
            !add_communication(event, start, duration))
            return false;
        tables_.Operators.add({.thread = thread(event),
                               .name = name,
                               .start_ns = start,
                               .duration_ns = duration,
                               .external_id = external,
                               .sequence_number = sequence,
                               .forward_thread = forward,
                               .input_dims = dims,
                               .input_types = types,
                               .input_strides = strides,
                               .concrete_inputs = concrete,
                               .kernel_file = string(event.kernel_file),
                               .message_bytes = message});
        return true;
    }

    bool add_launch(const Event& event, int32_t name, int64_t start, int64_t duration) {
        int64_t correlation, external;
        if (!ids(event, correlation, external)) return false;
        tables_.Launches.add({.thread = thread(event),
                              .name = name,
                              .start_ns = start,
                              .duration_ns = duration,
                              .correlation = correlation,
                              .external_id = external,
                              .status = kNull});
        return true;
    }

    bool add_synchronization(const Event& event, int32_t name, int64_t start, int64_t duration) {
        int64_t device, stream, awaited_event, correlation, awaited_stream, recorded_by;
        if (!integer(event.device, device, kInt32) || !integer(event.stream, stream) ||
            !integer(event.awaited_event, awaited_event) || !integer(event.correlation, correlation) ||
            !integer(event.awaited_stream, awaited_stream) || !integer(event.recorded_by, recorded_by))
            return false;
        tables_.Synchronizations.add({.name = name,
                                      .device = device,
                                      .stream = meant(stream),
                                      .event = meant(awaited_event),
                                      .start_ns = start,
                                      .duration_ns = duration,
                                      .correlation = correlation,
                                      .awaited_stream = meant(awaited_stream),
                                      .recorded_by = recorded_by});
        return true;
    }

    // CUPTI writes 32 bits that are all set where there is none, Kineto these or -1.
    static int64_t meant(int64_t number) { return number < 0 || number == UINT32_MAX ? kNull : number; }

    // Before PyTorch 1.13 the key was lower-case, and repeated the correlation id where there was no operator.
    static bool ids(const Event& event, int64_t& correlation, int64_t& external) {
        const bool old = !event.external_id && event.old_external_id;
        if (!integer(event.correlation, correlation)) return false;
        if (!integer(old ? event.old_external_id : event.external_id, external)) return false;
        if (old && external == correlation) external = kNull;
        return true;
    }

    // How much a copy or fill moved; of a collective, the larger of its messages.
    static bool moved(const Event& event, int64_t& bytes) {
        if (event.bytes || !event.element_type) return integer(event.bytes, bytes);
        int64_t in, out;
        const Token& type = event.element_type;
        if (!integer(event.elements_in, in) || !integer(event.elements_out, out)) return false;
        if (type.text().find('\\') != std::string_view::npos) return false;  // Python decodes it
        const int64_t size = element_size(type), elements = std::max(in, out);
        bytes = size && elements >= 0 && elements <= kMostElements ? elements * size : kNull;
        return true;
    }

    bool add_activity(const Event& event, Category category, int32_t name, int64_t start, int64_t duration) {
        int64_t device, stream, original, context, correlation, external, graph, node, bytes, registers, shared;
        double occupancy;
        if (!integer(event.device, device, kInt32) || !integer(event.stream, stream) ||
            !integer(event.original_stream, original) || !integer(event.context, context) ||
            !ids(event, correlation, external) || !integer(event.graph, graph) || !integer(event.node, node) ||
            !moved(event, bytes) || !integer(event.registers, registers, kInt32) ||
            !integer(event.shared_memory, shared) || !decimal(event.occupancy, occupancy))
            return false;
        // Kineto repeats the device as the event's process and the stream as its thread; old traces have only those.
        if ((event.device && device == kNull) || (event.stream && stream == kNull)) return false;
        if (device == kNull && !integer(event.pid, device, kInt32)) return false;
        if (stream == kNull && !integer(event.tid, stream)) return false;
        // Since PyTorch 2.14, kernels of a graph stand on lanes of their own, and the stream beside them.
        if (original != kNull) stream = original;
        int32_t grid, block;
        if (!list(event.grid, grid) || !list(event.block, block)) return false;
        if (category == kKernel && !add_communication(event, start, duration)) return false;
        const auto kind = static_cast<int32_t>(category - kKernel);
        tables_.Activities.add({.kind = kind,
                                .name = name,
                                .device = device,
                                .stream = stream,
                                .context = context,
                                .start_ns = start,
                                .duration_ns = duration,
                                .correlation = correlation,
                                .external_id = external,
                                .graph_id = graph,
                                .graph_node_id = node,
                                .bytes = bytes,
                                .grid = grid,
                                .block = block,
                                .registers_per_thread = registers,
                                .shared_memory_bytes = shared,
                                .theoretical_occupancy_percent = occupancy,
                                .collective = string(event.collective)});
        return true;
    }

    // Nothing may fail behind it: Python would look at the event again, and add the row once more.
    bool add_communication(const Event& event, int64_t start, int64_t duration) {
        if (!event.collective || *event.collective.begin != '"') return true;
        int64_t correlation, external, size, first, stride, rank, sequence, in, out, source, destination;
        if (!ids(event, correlation, external) || !integer(event.group_size, size, kInt32) ||
            !integer(event.first_rank, first, kInt32) || !integer(event.rank_stride, stride, kInt32) ||
            !integer(event.group_rank, rank, kInt32) || !integer(event.communication_sequence, sequence) ||
            !integer(event.elements_in, in) || !integer(event.elements_out, out) ||
            !integer(event.source_rank, source, kInt32) || !integer(event.destination_rank, destination, kInt32))
            return false;
        int32_t ranks, splits_in, splits_out;
        if (!string_or_list(event.group_ranks, ranks) || !string_or_list(event.splits_in, splits_in) ||
            !string_or_list(event.splits_out, splits_out))
            return false;
        tables_.Communications.add({.collective = string(event.collective),
                                    .start_ns = start,
                                    .duration_ns = duration,
                                    .external_id = external,
                                    .correlation = correlation,
                                    .group = string(event.group),
                                    .group_description = string(event.group_description),
                                    .group_ranks = ranks,
                                    .group_size = size,
                                    .first_rank = first,
                                    .rank_stride = stride,
                                    .group_rank = rank,
                                    .sequence = sequence,
                                    .element_type = string(event.element_type),
                                    .elements_in = in,
                                    .elements_out = out,
                                    .splits_in = splits_in,
                                    .splits_out = splits_out,
                                    .source = source,
                                    .destination = destination});
        return true;
    }

    // Of one number, as PyTorch writes counters; those of several are other programs'.
    bool add_counter(const Event& event) {
        int64_t time, device = kNull;
        double value;
        if (event.ts.is_null() || event.odd_args || !nanoseconds(event.ts, time)) return false;
        if (event.arguments != 1 || event.value.is_null()) return true;
        if (!event.name || *event.name.begin != '"' || has_escape(event.name) || has_escape(event.pid)) return false;
        if (*event.value.begin == '"' || *event.value.begin == '[' || *event.value.begin == '{') return true;
        if (event.value.end[-1] < '0' || event.value.end[-1] > '9' || !decimal(event.value, value)) return false;
        constexpr std::string_view before = "\"GPU ", after = " Counters\"";
        const std::string_view process = event.pid ? event.pid.text() : std::string_view();
        if (process.size() > before.size() + after.size() && process.substr(0, before.size()) == before &&
            process.substr(process.size() - after.size()) == after) {
            const Token number{event.pid.begin + before.size(), event.pid.end - after.size()};
            bool plain = number.text().size() < 10;
            for (char c : number.text()) plain &= c >= '0' && c <= '9';
            if (plain && !integer(number, device, kInt32)) return false;
        }
        if (!wanted_.all && (wanted_.outline || time < wanted_.begin || time >= wanted_.end)) return true;
        tables_.Counters.add(
            {.time_ns = time, .device = device, .name = names_.code(event.name.text()), .value = value});
        return true;
    }

    bool add_allocation(const Event& event) {
        int64_t time, type, device, bytes, total, reserved, address;
        if (event.ts.is_null() || !plain_identity(event.pid) || !plain_identity(event.tid)) return false;
        if (event.odd_args || !nanoseconds(event.ts, time) || !integer(event.device_type, type, kInt32) ||
            !integer(event.device_id, device, kInt32) || !integer(event.memory_bytes, bytes) ||
            !integer(event.total_allocated, total) || !integer(event.total_reserved, reserved) ||
            !integer(event.address, address))
            return false;
        if (!wanted_.all && (wanted_.outline || time < wanted_.begin || time >= wanted_.end)) return true;
        tables_.Allocations.add({.thread = thread(event),
                                 .time_ns = time,
                                 .device_type = type,
                                 .device = device,
                                 .bytes = bytes,
                                 .total_allocated_bytes = total,
                                 .total_reserved_bytes = reserved,
                                 .address = address});
        return true;
    }

    int32_t string(const Token& token) { return token && *token.begin == '"' ? texts_.code(token.text()) : kNoText; }

    bool string_or_list(const Token& token, int32_t& code) {
        code = string(token);
        return code != kNoText || list(token, code);
    }

    bool list(const Token& token, int32_t& code) {
        code = kNoText;
        if (token.is_null()) return true;
        if (*token.begin != '[') return false;
        code = texts_.code(token.text());
        return true;
    }

    size_t category_at(std::string_view token) {
        if (last_category_ < categories_.size() && categories_.text(last_category_) == token) return last_category_;
        const auto code = static_cast<size_t>(categories_.code(token));
        if (code == category_codes_.size()) {
            category_codes_.push_back(category_of(token));
            ignored_.push_back(0);
        }
        return last_category_ = code;
    }

    void clear_tables() {
        tables_.each([](Table, auto& table) {
            table.each([](auto& column) { column.clear(); });
            table.height = 0;
        });
    }

    // Whether a name with escapes may be that of a step.
    static bool may_be_step_in_disguise(std::string_view name) {
        static constexpr std::string_view step = "\"ProfilerStep#";
        size_t same = 0;
        while (same < step.size() && same < name.size() && name[same] == step[same]) ++same;
        return same < step.size() && same < name.size() && name[same] == '\\';
    }

    static bool names_step(std::string_view name) { return name.substr(0, 14) == "\"ProfilerStep#"; }

    bool is_step(int32_t name) const { return names_step(names_.text(name)); }

    // Numbers and plain text name a process or thread as they are written; anything else has several spellings.
    static bool plain_identity(const Token& token) {
        if (token.is_null()) return true;
        const std::string_view text = token.text();
        if (text[0] == '"') {
            for (char c : text.substr(1, text.size() - 2))
                if (c < ' ' || c > '~' || c == '\\') return false;
            return true;
        }
        return all_are(text, kInIdentity) && text.substr(0, 2) != "-0";
    }

    int32_t thread(const Event& event) {
        const int32_t process = identity(event.pid, last_process_), thread = identity(event.tid, last_thread_);
        return this->thread(process, thread);
    }

    // The last event's is mostly the same.
    int32_t identity(const Token& token, int32_t last) {
        const std::string_view text = token ? token.text() : std::string_view("null");
        return last >= 0 && identities_.text(static_cast<size_t>(last)) == text ? last : identities_.code(text);
    }

    // Numbers the pairs of process and thread from 0 as they appear. Neighbouring events mostly share theirs.
    int32_t thread(int32_t process, int32_t thread) {
        if (process == last_process_ && thread == last_thread_) return last_number_;
        last_process_ = process;
        last_thread_ = thread;
        const uint64_t pair =
            static_cast<uint64_t>(static_cast<uint32_t>(process)) << 32 | static_cast<uint32_t>(thread);
        const auto [found, is_new] = thread_numbers_.try_emplace(pair, static_cast<int32_t>(threads_.size() / 2));
        if (is_new) {
            threads_.push_back(process);
            threads_.push_back(thread);
        }
        return last_number_ = found->second;
    }

    const Wanted& wanted_;
    Extent extents_[kExtents];
    Tables tables_;
    Interner names_, texts_, identities_, categories_;
    std::vector<Category> category_codes_;
    size_t last_category_ = 0;
    std::vector<int64_t> ignored_;
    std::vector<int32_t> threads_;
    std::unordered_map<uint64_t, int32_t> thread_numbers_;
    int32_t last_process_ = -1, last_thread_ = -1, last_number_ = -1;
    std::string odd_;
    std::vector<int64_t> odd_ends_;
    int64_t plain_count_ = 0;
};

// ---------------------------------------------------------------- threads

// Threads that take up tasks in the order in which they come. Tasks must not throw.
class Workers {
public:
    // There are fewer, or none, where the system allows no more.
    explicit Workers(size_t count) {
        threads_.reserve(count);
        try {
            while (threads_.size() < count) threads_.emplace_back([this] { work(); });
        } catch (const std::system_error&) {
        } catch (const std::bad_alloc&) {
        }
    }

    Workers(const Workers&) = delete;
    Workers& operator=(const Workers&) = delete;

    // What nobody has taken up by now is left.
    ~Workers() {
        {
            const std::lock_guard<std::mutex> lock(mutex_);
            ending_ = true;
        }
        added_.notify_all();
        for (std::thread& thread : threads_) thread.join();
    }

    size_t count() const { return threads_.size(); }

    // `done` becomes true after the task; ask `is_done` for it.
    void add(std::function<void()> task, bool& done) {
        done = false;
        {
            const std::lock_guard<std::mutex> lock(mutex_);
            tasks_.push_back({std::move(task), &done});
        }
        added_.notify_one();
    }

    bool is_done(const bool& done) {
        const std::lock_guard<std::mutex> lock(mutex_);
        return done;
    }

    void wait(const bool& done) {
        std::unique_lock<std::mutex> lock(mutex_);
        finished_.wait(lock, [&] { return done; });
    }

private:
    struct Task {
        std::function<void()> work;
        bool* done;
    };

    void work() {
        std::unique_lock<std::mutex> lock(mutex_);
        for (;;) {
            added_.wait(lock, [&] { return ending_ || !tasks_.empty(); });
            if (ending_) return;
            const Task task = std::move(tasks_.front());
            tasks_.pop_front();
            lock.unlock();
            task.work();
            lock.lock();
            *task.done = true;
            finished_.notify_all();
        }
    }

    std::mutex mutex_;
    std::condition_variable added_, finished_;
    std::deque<Task> tasks_;
    bool ending_ = false;
    std::vector<std::thread> threads_;
};

// A stretch of the list of events, and what comes of it if an event begins where it begins.
struct Block {
    Block(size_t capacity, Store* table_stores, const Wanted& wanted)
        : text(new char[capacity]), stores(table_stores), rows(false, wanted) {}

    // Reads events up to what cannot be understood without what is before or behind the block.
    void read() noexcept {
        try {
            Cursor cursor{text.get(), text.get() + size};
            for (;;) {
                const Rows::Stop stop = rows.read(cursor);
                if (stop == Rows::Stop::kEnd) cursor.at = cursor.end;
                const char* next = stop == Rows::Stop::kBroken ? next_event(cursor.at + 1, cursor.end) : nullptr;
                if (next == nullptr) break;
                has_broken = true;
                rows.keep_odd(cursor.at, next);
                cursor.at = next;
            }
            used = static_cast<size_t>(cursor.at - text.get());
            part = rows.packed(stores);
        } catch (...) {
            failed = true;
        }
    }

    void clear() {
        size = used = 0;
        ends.clear();
        rows.clear();
        part = Part();
        has_broken = failed = false;
    }

    std::unique_ptr<char[]> text;
    Store* stores;
    size_t size = 0;
    std::vector<size_t> ends;  // where pieces of the file end within it
    Rows rows;
    Part part;
    size_t used = 0;
    bool has_broken = false, failed = false, done = false;
};

// ---------------------------------------------------------------- the reader

class Reader {
public:
    Reader(size_t threads, size_t block_size)
        : threads_(threads), block_size_(std::min(block_size, kLongestEvent / 2)) {}

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
        if (!in_blocks_) {
            pending_.insert(pending_.end(), data, data + size);
            parse(false);
            fed_ += size;
            begin_blocks();
            return;
        }
        while (size != 0) {
            const size_t length = std::min(size, room());
            std::memcpy(block_->text.get() + block_->size, data, length);
            filled(length);
            data += length;
            size -= length;
        }
        end_piece();
    }

    // Feeds what a file has, in pieces of one size: at most `most` bytes, less only at its end. Returns how many they
    // were, or the system's error, negative. So nobody has to wait for Python's lock between pieces.
    int64_t read(int file, size_t piece_size, size_t most) {
        size_t total = 0;
        while (total < most) {
            const size_t size = std::min(piece_size, most - total);
            const bool in_blocks = in_blocks_;
            // The same memory again and again: what is not new needs no page faults.
            if (!in_blocks && piece_size_ < size) piece_.reset(new char[piece_size_ = size]);
            size_t had = 0;
            while (had < size) {
                char* to = in_blocks ? block_->text.get() + block_->size : piece_.get() + had;
                const ssize_t got = ::read(file, to, in_blocks ? std::min(size - had, room()) : size - had);
                if (got < 0 && errno == EINTR) continue;
                if (got < 0) return -errno;
                if (got == 0) break;
                had += static_cast<size_t>(got);
                if (in_blocks) filled(static_cast<size_t>(got));
            }
            if (in_blocks) {
                end_piece();
            } else {
                feed(piece_.get(), had);
            }
            total += had;
            if (had < size) break;
        }
        return static_cast<int64_t>(total);
    }

    void finish() {
        if (in_blocks_) end_blocks();
        parse(true);
        truncated_ = state_ != State::kFooter;
        if (state_ == State::kHeader && header_.empty()) give_up();
        keep_rows();
        pending_ = {};
        piece_.reset();
        piece_size_ = 0;
    }

    // Call it before there is any text.
    void want(const Wanted& wanted) { wanted_ = wanted; }

    size_t height(int table) const {
        size_t height = 0;
        for (const Part& part : parts_) height += part.heights[table];
        return height;
    }

    // Writes a table's columns, in the order of columns.h. `columns` says where to.
    void copy(int table, void* const* columns) {
        together(kLayouts[table].count, [&](size_t column) {
            if (Layout::width(kLayouts[table].kinds[column]) == sizeof(int32_t))
                copy_codes(table, column, static_cast<int32_t*>(columns[column]));
            else
                copy_values(table, column, static_cast<char*>(columns[column]));
        });
    }

    void release(int table) {
        for (Part& part : parts_) part.heights[table] = 0;
        stores_[table].clear();
    }

    const Rows& rows() const { return rows_; }
    const std::string& header() const { return header_; }
    const std::string& footer() const { return footer_; }
    size_t footer_size() const { return footer_size_; }
    void clear_odd() { rows_.clear_odd(); }
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
        if (rows_.height() >= kRowsOfPart) keep_rows();
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
        header_.assign(pending_.data(), std::min(pending_.size(), kBeginning));
        state_ = State::kNoTrace;
        return pending_.size();
    }

    size_t parse_events(size_t used, bool last) {
        Cursor cursor{pending_.data() + used, pending_.data() + pending_.size()};
        for (;;) {
            const Rows::Stop stop = rows_.read(cursor);
            if (stop == Rows::Stop::kEnd) return pending_.size();
            if (stop == Rows::Stop::kBracket) {
                state_ = State::kFooter;
                return offset(cursor.at) + 1;
            }
            const char* begin = cursor.at;
            const auto length = static_cast<size_t>(cursor.end - begin);
            if (stop == Rows::Stop::kNeedsMore && !last && length < kLongestEvent) return offset(begin);
            // Looking on from inside a stretch without end may scan it once per event that seems to begin in it.
            if (stop == Rows::Stop::kNeedsMore) rescanned_ += length;
            const char* next = rescanned_ < kMostRescanned ? next_event(begin + 1, cursor.end) : nullptr;
            if (next == nullptr) {
                if (!last && length < kLongestEvent && rescanned_ < kMostRescanned) return offset(begin);
                if (const char* bracket = last ? end_of_list(begin + 1, cursor.end) : nullptr) {
                    rows_.keep_odd(begin, bracket);
                    cursor.at = bracket;
                    continue;
                }
                rows_.keep_odd(begin, cursor.end);
                return pending_.size();
            }
            rows_.keep_odd(begin, next);
            cursor.at = next;
        }
    }

    size_t offset(const char* at) const { return static_cast<size_t>(at - pending_.data()); }

    void keep_rows() {
        if (rows_.height() != 0) parts_.push_back(rows_.packed(stores_));
    }

    // ---- blocks

    // Has text put into blocks from now on, if there is so much of it that this is worth the threads.
    void begin_blocks() {
        if (threads_ < 2 || state_ != State::kEvents || fed_ < kBlocksBefore * block_size_) return;
        if (pending_.size() >= block_size_) return;
        if (!workers_) workers_ = std::make_unique<Workers>(threads_);
        if (workers_->count() < 2) {
            threads_ = 1;
            return;
        }
        in_blocks_ = true;
        block_ = empty_block();
        std::copy(pending_.begin(), pending_.end(), block_->text.get());
        block_->size = pending_.size();
        pending_.clear();
    }

    Block* empty_block() {
        if (free_.empty() && blocks_.size() >= workers_->count() + kMoreBlocks) take_first();
        if (free_.empty()) {
            blocks_.push_back(std::make_unique<Block>(block_size_, stores_, wanted_));
            return blocks_.back().get();
        }
        Block* block = free_.back();
        free_.pop_back();
        return block;
    }

    size_t room() const { return block_size_ - block_->size; }

    void filled(size_t size) {
        block_->size += size;
        if (room() != 0) return;
        // What is behind the last place where an event seems to begin goes into the next block.
        const char* text = block_->text.get();
        const char* cut = last_event(text, text + block_->size);
        const size_t kept = cut == nullptr ? block_->size : static_cast<size_t>(cut - text);
        Block* next = empty_block();
        next->size = block_->size - kept;
        std::memcpy(next->text.get(), text + kept, next->size);
        while (!block_->ends.empty() && block_->ends.back() > kept) {
            next->ends.insert(next->ends.begin(), block_->ends.back() - kept);
            block_->ends.pop_back();
        }
        block_->size = kept;
        queue_.push_back(block_);
        workers_->add([block = block_] { block->read(); }, block_->done);
        block_ = next;
    }

    void end_piece() {
        block_->ends.push_back(block_->size);
        while (!queue_.empty() && workers_->is_done(queue_.front()->done)) take_first();
        const bool in_vain = read_again_ > kMostInVain && read_again_ > read_ahead_;
        if (in_vain) threads_ = 1;
        if (in_vain || state_ != State::kEvents) end_blocks();
    }

    void end_blocks() {
        while (!queue_.empty()) take_first();
        read_on(*block_, 0);
        in_blocks_ = false;
        block_ = nullptr;
        free_.clear();
        blocks_.clear();
    }

    // Takes the first block's rows if an event begins where it begins, and reads what its thread could not.
    void take_first() {
        Block& block = *queue_.front();
        workers_->wait(block.done);
        queue_.pop_front();
        if (block.failed) throw std::bad_alloc();
        const bool fits = state_ == State::kEvents && pending_.empty();
        if (fits && !(block.has_broken && rescanned_ >= kMostRescanned)) {
            ++read_ahead_;
            keep_rows();
            block.part.codes = std::make_unique<const Part::Codes>(rows_.follow(block.rows));
            parts_.push_back(std::move(block.part));
            read_on(block, block.used);
        } else {
            ++read_again_;
            read_on(block, 0);
        }
        block.clear();
        free_.push_back(&block);
    }

    // Reads the rest of a block as one thread would have read it: what is to be given up depends on what had arrived.
    void read_on(const Block& block, size_t from) {
        for (size_t end : block.ends) {
            if (end < from) continue;
            append(block, from, end);
            from = end;
            parse(false);
        }
        append(block, from, block.size);
        // Looking earlier than one thread would makes no difference as long as nothing can be given up.
        if (state_ == State::kEvents && pending_.size() < kLongestEvent && rescanned_ < kMostRescanned) parse(false);
    }

    void append(const Block& block, size_t begin, size_t end) {
        pending_.insert(pending_.end(), block.text.get() + begin, block.text.get() + end);
    }

    // ---- columns

    // Does a number of things that do not throw, on all threads if they are many.
    template <typename Work>
    void together(size_t count, const Work& work) {
        std::atomic<size_t> next{0};
        const auto some = [&] {
            for (size_t at; (at = next++) < count;) work(at);
        };
        const size_t most = workers_ ? std::min(workers_->count(), count) : 0;
        const std::unique_ptr<bool[]> done(new bool[most]);
        size_t helpers = 0;
        try {
            while (helpers < most) workers_->add(std::cref(some), done[helpers]), ++helpers;
        } catch (const std::bad_alloc&) {  // those that were added have to end before this does
        }
        some();
        while (helpers != 0) workers_->wait(done[--helpers]);
    }

    void copy_values(int table, size_t column, char* to) const {
        const size_t before = kLayouts[table].before(column), width = Layout::width(kLayouts[table].kinds[column]);
        for (const Part& part : parts_) {
            const size_t height = part.heights[table];
            if (height == 0) continue;
            std::memcpy(to, part.values[table] + before * height, width * height);
            to += width * height;
        }
    }

    void copy_codes(int table, size_t column, int32_t* to) const {
        const ColumnKind kind = kLayouts[table].kinds[column];
        const size_t before = kLayouts[table].before(column);
        for (const Part& part : parts_) {
            const size_t height = part.heights[table];
            if (height == 0) continue;
            std::memcpy(to, part.values[table] + before * height, sizeof(int32_t) * height);
            if (part.codes && kind != ColumnKind::KIND) {
                const int32_t* codes = codes_of(*part.codes, kind);
                for (size_t row = 0; row < height; ++row)
                    if (to[row] != kNoText) to[row] = codes[to[row]];
            }
            to += height;
        }
    }

    static const int32_t* codes_of(const Part::Codes& all, ColumnKind kind) {
        if (kind == ColumnKind::THREAD) return all.threads.data();
        return (kind == ColumnKind::NAME ? all.names : all.texts).data();
    }

    State state_ = State::kHeader;
    std::vector<char> pending_;
    std::unique_ptr<char[]> piece_;
    size_t piece_size_ = 0;
    size_t header_done_ = 0, header_retry_ = kBeginning;
    Wanted wanted_;
    Rows rows_{true, wanted_};
    Store stores_[kTables];
    std::vector<Part> parts_;
    std::string header_, footer_;
    size_t rescanned_ = 0, footer_size_ = 0;
    bool truncated_ = false;

    size_t threads_, block_size_, fed_ = 0;
    bool in_blocks_ = false;
    Block* block_ = nullptr;    // that is being filled
    std::deque<Block*> queue_;  // that are full, in the order of the file
    std::vector<Block*> free_;
    std::vector<std::unique_ptr<Block>> blocks_;
    size_t read_ahead_ = 0, read_again_ = 0;  // how many blocks were read on several threads, and how many in vain
    std::unique_ptr<Workers> workers_;        // the last member: its threads use the others
};

const Interner& strings(const Reader& reader, int which) {
    const Rows& rows = reader.rows();
    if (which == 0) return rows.names();
    if (which == 1) return rows.texts();
    return which == 2 ? rows.identities() : rows.categories();
}

}  // namespace

extern "C" {

int32_t opscope_kineto_version() { return 16; }
Reader* opscope_kineto_new(size_t threads, size_t block_size) {
    try {
        return new Reader(threads, block_size);
    } catch (const std::bad_alloc&) {
        return nullptr;
    }
}
void opscope_kineto_free(Reader* reader) {
    delete reader;
#ifdef __GLIBC__
    malloc_trim(0);  // the heap keeps what is freed
#endif
}
// Has only steps become rows, or only what begins in a range of time; to be called first.
void opscope_kineto_want(Reader* reader, int32_t outline, int64_t begin, int64_t end, int64_t near_begin,
                         int64_t near_end, int64_t queued_begin, int64_t queued_end) {
    reader->want({false, outline != 0, begin, end, near_begin, near_end, queued_begin, queued_end});
}
// When the first slice of some kind began (end = 0) and the last one ended (1), after `want`.
int64_t opscope_kineto_extent(const Reader* reader, int32_t which, int32_t end) {
    const Extent& extent = reader->rows().extent(which);
    return end == 0 ? extent.first : extent.last;
}
int32_t opscope_kineto_feed(Reader* reader, const char* data, size_t size) {
    return reader->guarded([&] { reader->feed(data, size); });
}
// Returns how many bytes there were, 0 at the end; or an error's number, negative.
int64_t opscope_kineto_read(Reader* reader, int32_t file, size_t piece_size, size_t most) {
    int64_t size = 0;
    return reader->guarded([&] { size = reader->read(file, piece_size, most); }) ? size : -ENOMEM;
}
int32_t opscope_kineto_finish(Reader* reader) {
    return reader->guarded([&] { reader->finish(); });
}
int64_t opscope_kineto_plain_count(const Reader* reader) { return reader->rows().plain_count(); }
int32_t opscope_kineto_truncated(const Reader* reader) { return reader->truncated(); }
int32_t opscope_kineto_found_events(const Reader* reader) { return reader->found_events(); }

size_t opscope_kineto_height(const Reader* reader, int32_t table) { return reader->height(table); }

int32_t opscope_kineto_copy(Reader* reader, int32_t table, void* const* columns) {
    return reader->guarded([&] { reader->copy(table, columns); });
}

void opscope_kineto_release(Reader* reader, int32_t table) { reader->release(table); }

size_t opscope_kineto_string_count(const Reader* reader, int32_t which) { return strings(*reader, which).size(); }

size_t opscope_kineto_string_bytes(const Reader* reader, int32_t which) {
    const Interner& pool = strings(*reader, which);
    size_t bytes = 0;
    for (size_t code = 0; code < pool.size(); ++code) bytes += pool.text(code).size();
    return bytes;
}

// Copies all strings of a pool, one after the other, and where each of them ends.
void opscope_kineto_strings(const Reader* reader, int32_t which, char* to, int64_t* ends) {
    const Interner& pool = strings(*reader, which);
    int64_t end = 0;
    for (size_t code = 0; code < pool.size(); ++code) {
        const std::string_view text = pool.text(code);
        std::copy(text.begin(), text.end(), to + end);
        ends[code] = end += static_cast<int64_t>(text.size());
    }
}

const int32_t* opscope_kineto_threads(const Reader* reader, size_t* size) {
    *size = reader->rows().threads().size();
    return reader->rows().threads().data();
}

const int64_t* opscope_kineto_ignored(const Reader* reader, size_t* size) {
    *size = reader->rows().ignored().size();
    return reader->rows().ignored().data();
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
    *size = reader->rows().odd().size();
    return reader->rows().odd().data();
}

const int64_t* opscope_kineto_odd_ends(const Reader* reader, size_t* size) {
    *size = reader->rows().odd_ends().size();
    return reader->rows().odd_ends().data();
}

void opscope_kineto_clear_odd(Reader* reader) { reader->clear_odd(); }
}

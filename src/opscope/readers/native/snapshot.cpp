// Reads PyTorch's memory snapshots (pickles) into columns. The interface is at the end.
//
// A snapshot holds only dictionaries, lists, tuples, texts and numbers, so this knows no opcode that names, imports or
// calls anything: a file that has one is refused. Objects become rows as soon as they are complete, so that the memory
// taken is that of the columns and of the memo, not that of the objects. `snapshot.py` has the same rules in Python.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace {

constexpr int64_t kUnknown = INT64_MIN;

// ---------------------------------------------------------------- storage that grows without being copied

template <typename T>
class Chunked {
public:
    static constexpr size_t kRows = size_t{1} << 16;

    void push(const T& value) {
        if (size_ % kRows == 0) chunks_.emplace_back(new T[kRows]);
        chunks_.back()[size_++ % kRows] = value;
    }
    T& operator[](size_t row) { return chunks_[row / kRows][row % kRows]; }
    const T& operator[](size_t row) const { return chunks_[row / kRows][row % kRows]; }
    T& back() { return (*this)[size_ - 1]; }
    size_t size() const { return size_; }
    // Copies all rows, and frees each part as soon as it is copied.
    void take(void* to) {
        char* at = static_cast<char*>(to);
        for (size_t first = 0; first < size_; first += kRows) {
            size_t bytes = std::min(kRows, size_ - first) * sizeof(T);
            std::memcpy(at, chunks_[first / kRows].get(), bytes);
            chunks_[first / kRows].reset();
            at += bytes;
        }
        chunks_.clear();
        size_ = 0;
    }

private:
    std::vector<std::unique_ptr<T[]>> chunks_;
    size_t size_ = 0;
};

// ---------------------------------------------------------------- values

enum Kind : uint8_t {
    kNone,
    kBool,
    kInt,
    kLong,
    kFloat,
    kMark,
    kMemo,  // on the stack only
    kText,
    kEvent,
    kFrame,
    kStack,
    kSegment,
    kBlock,
    kNote,
    kRun,
    kDict,
    kList,
    kTuple,
    kOther,
};

struct Value {
    uint64_t bits;
    Kind kind() const { return Kind(bits >> 59); }
    int64_t number() const { return int64_t(bits << 5) >> 5; }
    uint32_t index() const { return uint32_t(bits); }
};

Value made(Kind kind, int64_t payload = 0) {
    return {uint64_t(kind) << 59 | (uint64_t(payload) & ((uint64_t{1} << 59) - 1))};
}

// What the memo keeps of a value: five bits for the kind, 27 for the index.
constexpr uint32_t kMostIndex = (1u << 27) - 1;

struct Dict {
    std::vector<std::pair<Value, Value>> items;
    bool used = false;
};

struct List {
    std::vector<Value> items;
    Kind of = kNone;  // rows of one table, one after the other, are kept as a run
    uint32_t first = 0, count = 0;
    bool again = false;  // whether its last row stood there twice
    bool used = false;
};

struct Run {
    Kind of;
    uint32_t first, count;
};

constexpr size_t kMostValues = size_t{1} << 25;      // on the stack
constexpr size_t kMostContainers = size_t{1} << 21;  // that are no rows
constexpr size_t kMostTexts = size_t{1} << 22;
constexpr int kDeepest = 8;
constexpr size_t kLongest = size_t{1} << 16;  // of the settings, as text

struct Failure {
    std::string why;
};

// The keys that rows are made of, by their number; kept in step with `snapshot.py`.
enum Key {
    kAction,
    kAddr,
    kSize,
    kStreamKey,
    kTime,
    kFrames,
    kContext,
    kMetadata,
    kPool,
    kDeviceFree,
    kName,
    kFilename,
    kLine,
    kAddress,
    kTotal,
    kSegmentType,
    kSegmentPool,
    kExpandable,
    kBlocks,
    kDeviceKey,
    kState,
    kRequested,
    kStage,
    kKeys
};
constexpr std::array<std::string_view, kKeys> kKeyNames = {"action",
                                                           "addr",
                                                           "size",
                                                           "stream",
                                                           "time_us",
                                                           "frames",
                                                           "compile_context",
                                                           "user_metadata",
                                                           "pool_id",
                                                           "device_free",
                                                           "name",
                                                           "filename",
                                                           "line",
                                                           "address",
                                                           "total_size",
                                                           "segment_type",
                                                           "segment_pool_id",
                                                           "is_expandable",
                                                           "blocks",
                                                           "device",
                                                           "state",
                                                           "requested_size",
                                                           "stage"};

enum Action : uint8_t {
    kAlloc,
    kFreeRequested,
    kFreeCompleted,
    kSegmentAlloc,
    kSegmentFree,
    kSegmentMap,
    kSegmentUnmap,
    kSnapshot,
    kOom,
    kFreed,
    kActionOther
};
// kFreed is a request and its completion at once, which is one row.
constexpr std::array<std::string_view, kFreed> kActionNames = {"alloc",         "free_requested", "free_completed",
                                                               "segment_alloc", "segment_free",   "segment_map",
                                                               "segment_unmap", "snapshot",       "oom"};

struct Hash {
    size_t operator()(const std::array<int64_t, 4>& value) const {
        uint64_t hash = 1469598103934665603ull;
        for (int64_t part : value) hash = (hash ^ uint64_t(part)) * 0x9e3779b97f4a7c15ull, hash ^= hash >> 29;
        return hash;
    }
};

class Reader {
public:
    // Reads a piece; what remains of an opcode that is cut is kept for the next piece.
    void feed(const char* data, size_t size) {
        if (stopped_) return;
        read_ += int64_t(size);
        if (!rest_.empty()) {
            rest_.append(data, size);
            size_t used = parse(rest_.data(), rest_.size());
            rest_.erase(0, used);
            return;
        }
        size_t used = parse(data, size);
        if (!stopped_) rest_.assign(data + used, size - used);
    }

    void finish() {
        if (!stopped_) throw Failure{"it ends early, after " + std::to_string(read_) + " bytes"};
        std::string text;
        Value root = resolved(root_);
        if (root.kind() == kRun && runs_[root.index()].of == kSegment) {  // of torch.cuda.memory_snapshot()
            emit_run("segments", 0, root);
            settings_ = "{}";
            return;
        }
        if (root.kind() != kDict) throw Failure{"it holds no dictionary, as a snapshot does"};
        settings_ = "{}";
        for (auto& [key, value] : dicts_[root.index()].items) {
            std::string name = text_of(key);
            Value held = resolved(value);
            if (name == "allocator_settings") {
                text.clear();
                write(text, held, 0);
                settings_ = text;
            } else if (held.kind() == kRun) {
                emit_run(name, 0, held);
            } else if (held.kind() == kList) {
                const List& list = lists_[held.index()];
                for (size_t at = 0; at < list.items.size(); ++at) {
                    Value item = resolved(list.items[at]);
                    if (item.kind() == kRun) emit_run(name, int64_t(at), item);
                    if (item.kind() == kStack) emit_run(name, int64_t(at), item);  // an empty list
                }
            } else if (held.kind() == kStack) {
                emit_run(name, 0, held);
            }
        }
        if (run_rows_.empty()) throw Failure{"it has no segments and no device_traces, as a snapshot has"};
    }

    // ---- results
    Chunked<uint8_t> action;
    Chunked<int64_t> addr, bytes, time;
    Chunked<uint16_t> stream;
    Chunked<uint32_t> stack, context;
    std::vector<int64_t> streams;                  // by the number in `stream`
    std::vector<std::array<int64_t, 4>> contexts;  // compile_context, user_metadata (texts), pool (two numbers)
    std::vector<std::array<int64_t, 3>> frames;    // name, filename (texts), line
    Chunked<int32_t> stack_frames;
    Chunked<int64_t> stack_ends;
    Chunked<std::array<int64_t, 9>> segments;  // device, address, total, stream, is large, pool x 2, expandable, stack
    Chunked<std::array<int64_t, 3>> segment_blocks;  // segment, first block, count
    Chunked<std::array<int64_t, 5>> blocks;          // address, size, requested, state (text), stack
    Chunked<std::array<int64_t, 4>> notes;           // device, stage (text), name (text), time
    std::vector<std::array<int64_t, 4>> run_rows_;   // name (text), position, kind, first | count in the next
    std::vector<int64_t> run_counts_;
    std::vector<std::string_view> texts;
    std::string settings_ = "{}";
    std::string error;

    Reader() {
        for (auto name : kKeyNames) keys_[text(name)] = int(keys_.size());
        for (auto name : kActionNames) actions_[text(name)] = uint8_t(actions_.size());
        stack_ends.push(0);  // stack 0 is the empty one
        stack_ids_[{0, 0, 0, 0}].push_back(0);
    }

private:
    // ---- opcodes
    size_t parse(const char* data, size_t size) {
        size_t at = 0;
        while (at < size) {
            size_t used = one(data + at, size - at);
            if (!used) break;
            at += used;
            if (stopped_) break;
        }
        return at;
    }

    static uint64_t little(const char* at, int bytes) {
        uint64_t value = 0;
        for (int byte = 0; byte < bytes; ++byte) value |= uint64_t(uint8_t(at[byte])) << (8 * byte);
        return value;
    }

    // Reads one opcode; returns its length, or 0 if more is needed.
    size_t one(const char* at, size_t left) {
        uint8_t code = uint8_t(*at);
        auto has = [&](size_t bytes) { return left > bytes; };
        switch (code) {
            case 0x80:  // PROTO
                if (!has(1)) return 0;
                if (at[1] < 2 || at[1] > 5)
                    throw Failure{"its protocol is " + std::to_string(int(uint8_t(at[1]))) + ", not 2 to 5"};
                return 2;
            case 0x95: return has(8) ? 9 : 0;  // FRAME
            case '}': push(made(kDict, new_dict())); return 1;
            case ']': push(made(kList, new_list())); return 1;
            case ')': push(made(kTuple, tuple({}))); return 1;
            case '(':
                push(made(kMark));
                ++marks_;
                return 1;
            case 'N': push(made(kNone)); return 1;
            case 0x88: push(made(kBool, 1)); return 1;
            case 0x89: push(made(kBool, 0)); return 1;
            case 'K':
                if (!has(1)) return 0;
                push(made(kInt, uint8_t(at[1])));
                return 2;
            case 'M':
                if (!has(2)) return 0;
                push(made(kInt, int64_t(little(at + 1, 2))));
                return 3;
            case 'J':
                if (!has(4)) return 0;
                push(made(kInt, int32_t(little(at + 1, 4))));
                return 5;
            case 0x8a: {  // LONG1
                if (!has(1)) return 0;
                size_t bytes = uint8_t(at[1]);
                if (!has(1 + bytes)) return 0;
                push_long(at + 2, bytes);
                return 2 + bytes;
            }
            case 'G': {  // BINFLOAT
                if (!has(8)) return 0;
                uint64_t bits = 0;
                for (int byte = 0; byte < 8; ++byte) bits = bits << 8 | uint8_t(at[1 + byte]);
                double value;
                std::memcpy(&value, &bits, 8);
                if (floats_.size() >= kMostContainers)
                    throw Failure{"it holds more numbers with a point than a snapshot does"};
                floats_.push_back(value);
                push(made(kFloat, int64_t(floats_.size() - 1)));
                return 9;
            }
            case 0x8c: return read_text(at, left, 1);
            case 'X': return read_text(at, left, 4);
            case 0x8d: return read_text(at, left, 8);
            case 0x94: memoize(memo_.size()); return 1;  // MEMOIZE
            case 'q':
                if (!has(1)) return 0;
                memoize(uint8_t(at[1]));
                return 2;
            case 'r':
                if (!has(4)) return 0;
                memoize(little(at + 1, 4));
                return 5;
            case 'h':
                if (!has(1)) return 0;
                recall(uint8_t(at[1]));
                return 2;
            case 'j':
                if (!has(4)) return 0;
                recall(little(at + 1, 4));
                return 5;
            case 0x85:
            case 0x86:
            case 0x87: {  // TUPLE1 to TUPLE3
                size_t count = code - 0x84u;
                need(count);
                push_tuple(values_.size() - count);
                return 1;
            }
            case 't': {
                size_t mark = to_mark();
                push_tuple(mark + 1, 1);
                return 1;
            }
            case 'a': {
                need(2);
                append(values_.size() - 1);
                values_.resize(values_.size() - 1);
                return 1;
            }
            case 'e': {
                size_t mark = to_mark();
                append(mark + 1, mark);
                values_.resize(mark);
                return 1;
            }
            case 's': {
                need(3);
                set_items(values_.size() - 2);
                values_.resize(values_.size() - 2);
                return 1;
            }
            case 'u': {
                size_t mark = to_mark();
                set_items(mark + 1, mark);
                values_.resize(mark);
                return 1;
            }
            case '.':
                need(1);
                root_ = values_.back();
                stopped_ = true;
                return 1;
            default: {
                char shown[8];
                std::snprintf(shown, sizeof shown, "0x%02x", code);
                throw Failure{std::string("it holds opcode ") + shown + ", which no snapshot needs; nothing was run"};
            }
        }
    }

    size_t read_text(const char* at, size_t left, int bytes) {
        if (left <= size_t(bytes)) return 0;
        uint64_t size = little(at + 1, bytes);
        if (size > (uint64_t{1} << 30)) throw Failure{"it holds a text of " + std::to_string(size) + " bytes"};
        if (left - 1 - bytes < size) return 0;
        push(made(kText, text({at + 1 + bytes, size})));
        return 1 + bytes + size;
    }

    void push_long(const char* at, size_t bytes) {
        if (bytes > 8 && !(bytes == 9 && at[8] == 0)) throw Failure{"it holds a number of more than 64 bits"};
        uint64_t value = little(at, int(std::min<size_t>(bytes, 8)));
        if (bytes > 0 && bytes < 8 && (at[bytes - 1] & 0x80)) value |= ~uint64_t{0} << (8 * bytes);
        int64_t number = bytes > 8 && int64_t(value) < 0 ? INT64_MAX : int64_t(value);
        if (number >= -(int64_t{1} << 58) && number < (int64_t{1} << 58)) return push(made(kInt, number));
        if (longs_.size() >= kMostContainers) throw Failure{"it holds more large numbers than a snapshot does"};
        longs_.push_back(number);
        push(made(kLong, int64_t(longs_.size() - 1)));
    }

    void push(Value value) {
        if (values_.size() >= kMostValues) throw Failure{"it holds more values at once than a snapshot does"};
        values_.push_back(value);
    }

    // The position of the last mark, below which opcodes for what lies above it do not reach.
    size_t to_mark() {
        if (!marks_) throw Failure{"an opcode lacks its mark"};
        size_t at = values_.size() - 1;
        while (values_[at].kind() != kMark) --at;
        --marks_;
        return at;
    }

    void need(size_t count) {
        if (values_.size() < count) throw Failure{"an opcode lacks its values"};
        for (size_t at = values_.size() - count; at < values_.size(); ++at)
            if (values_[at].kind() == kMark) throw Failure{"an opcode lacks its values"};
    }

    void memoize(uint64_t slot) {
        need(1);
        if (slot != memo_.size() || slot >= kMostIndex) throw Failure{"it numbers its objects as no snapshot does"};
        Value value = values_.back();
        if (value.kind() < kText) {  // also what has a number already: what it becomes is kept in one place
            if (others_.size() >= kMostContainers) throw Failure{"it refers back to more numbers than a snapshot does"};
            others_.push_back(value);
            value = made(kOther, int64_t(others_.size() - 1));
        }
        memo_.push(uint32_t(value.kind()) << 27 | value.index());
        if (value.kind() == kDict || value.kind() == kList) values_.back() = made(kMemo, int64_t(slot));
    }

    void recall(uint64_t slot) {
        if (slot >= memo_.size()) throw Failure{"it refers to an object that is not there"};
        uint32_t packed = memo_[slot];
        Kind kind = Kind(packed >> 27);
        if (kind == kOther) return push(others_[packed & kMostIndex]);
        if (kind == kDict || kind == kList) return push(made(kMemo, int64_t(slot)));
        push(made(kind, packed & kMostIndex));
    }

    // The value behind a reference to the memo.
    Value resolved(Value value) const {
        if (value.kind() != kMemo) return value;
        uint32_t packed = memo_[value.index()];
        return made(Kind(packed >> 27), packed & kMostIndex);
    }

    // ---- containers
    int64_t new_dict() {
        if (!free_dicts_.empty()) {
            int64_t index = free_dicts_.back();
            free_dicts_.pop_back();
            return index;
        }
        if (dicts_.size() >= kMostContainers) throw Failure{"it holds more dictionaries than a snapshot does"};
        dicts_.emplace_back();
        return int64_t(dicts_.size() - 1);
    }

    int64_t new_list() {
        if (!free_lists_.empty()) {
            int64_t index = free_lists_.back();
            free_lists_.pop_back();
            return index;
        }
        if (lists_.size() >= kMostContainers) throw Failure{"it holds more lists than a snapshot does"};
        lists_.emplace_back();
        return int64_t(lists_.size() - 1);
    }

    int64_t tuple(std::vector<Value> items) {
        // The numbers of pools are few; equal tuples of two numbers are one.
        std::array<int64_t, 4> key = {int64_t(items.size()), 0, 0, 0};
        bool plain = items.size() <= 2;
        for (size_t at = 0; at < items.size() && plain; ++at) {
            plain = items[at].kind() == kInt;
            key[at + 1] = items[at].number();
        }
        if (plain)
            if (auto known = tuple_ids_.find(key); known != tuple_ids_.end()) return known->second;
        if (tuples_.size() >= kMostContainers) throw Failure{"it holds more tuples than a snapshot does"};
        tuples_.push_back(std::move(items));
        if (plain) tuple_ids_[key] = int64_t(tuples_.size() - 1);
        return int64_t(tuples_.size() - 1);
    }

    void push_tuple(size_t first, size_t mark = 0) {
        std::vector<Value> items;
        for (size_t at = first; at < values_.size(); ++at) items.push_back(sealed(values_[at]));
        values_.resize(first - mark);
        push(made(kTuple, tuple(std::move(items))));
    }

    // A container is complete when another one takes it; it must not change any more.
    Value sealed(Value value) {
        Value held = resolved(value);
        if (held.kind() == kDict) {
            dicts_[held.index()].used = true;
            return value;
        }
        if (held.kind() != kList || lists_[held.index()].used) return value;
        List& list = lists_[held.index()];
        Value result = held;
        if (list.of != kNone) {
            if (runs_.size() >= kMostIndex) throw Failure{"it holds more lists than a snapshot does"};
            runs_.push_back({list.of, list.first, list.count});
            result = made(kRun, int64_t(runs_.size() - 1));
        } else if (list.items.empty() || list.items.front().kind() == kFrame) {
            for (Value item : list.items)
                if (item.kind() != kFrame) throw Failure{"a list holds frames and something else"};
            result = made(kStack, stack_of(list.items));
        } else {
            list.used = true;
            return value;
        }
        free_list(held.index());
        replace(value, result);
        return result;
    }

    // Puts the row that a container became in its place in the memo.
    void replace(Value reference, Value result) {
        if (reference.kind() == kMemo) memo_[reference.index()] = uint32_t(result.kind()) << 27 | result.index();
    }

    void free_list(uint32_t index) {
        List& list = lists_[index];
        if (list.items.capacity() > 4096) list.items = {};
        list.items.clear();
        list.of = kNone;
        list.first = list.count = 0;
        list.again = false;
        free_lists_.push_back(index);
    }

    static bool is_row(Kind kind) { return kind == kEvent || kind == kSegment || kind == kBlock || kind == kNote; }

    void append(size_t first, size_t end = 0) {
        size_t below = end ? end : first;
        if (!below) throw Failure{"an opcode lacks its list"};
        Value target = resolved(values_[below - 1]);
        if (target.kind() != kList) throw Failure{"it appends to what is no list, or to one that was complete"};
        if (lists_[target.index()].used) throw Failure{"it appends to a list that was complete"};
        for (size_t at = first; at < values_.size(); ++at) {
            Value item = resolved(sealed(values_[at]));
            List& list = lists_[target.index()];
            if (!is_row(item.kind())) {
                if (list.of != kNone) throw Failure{"a list holds rows and something else"};
                list.items.push_back(item.kind() == kDict || item.kind() == kList ? values_[at] : item);
                continue;
            }
            if (list.of == kNone) {
                if (!list.items.empty()) throw Failure{"a list holds rows and something else"};
                list.of = item.kind();
                list.first = item.index();
            }
            // Two entries that became one row (see `add_event`) are that row twice.
            bool again = item.kind() == kEvent && list.count && item.index() == list.first + list.count - 1;
            if (again && !list.again && action[item.index()] == kFreed) {
                list.again = true;
                continue;
            }
            list.again = false;
            if (list.of != item.kind() || item.index() != list.first + list.count)
                throw Failure{"the entries of a list are not in the order in which they were written"};
            ++list.count;
        }
    }

    void set_items(size_t first, size_t end = 0) {
        size_t below = end ? end : first;
        if (!below) throw Failure{"an opcode lacks its dictionary"};
        if ((values_.size() - first) % 2) throw Failure{"a dictionary has a key without a value"};
        Value reference = values_[below - 1];
        Value target = resolved(reference);
        if (target.kind() != kDict)
            throw Failure{"it sets items of what is no dictionary, or of one that was complete"};
        if (dicts_[target.index()].used) throw Failure{"it changes a dictionary that was complete"};
        for (size_t at = first; at < values_.size(); at += 2) {
            Value key = resolved(values_[at]), value = sealed(values_[at + 1]);
            dicts_[target.index()].items.emplace_back(key, value);
        }
        Value row = row_of(dicts_[target.index()]);
        if (row.kind() == kNone) return;
        dicts_[target.index()].items.clear();
        dicts_[target.index()].used = false;
        free_dicts_.push_back(target.index());
        replace(reference, row);
        values_[below - 1] = row;
    }

    // ---- rows
    // Returns the row that a dictionary is, or None if it is none that opscope knows.
    Value row_of(const Dict& dict) {
        std::array<const Value*, kKeys> at{};
        for (const auto& [key, value] : dict.items) {
            if (key.kind() != kText) return made(kNone);
            if (auto known = keys_.find(key.index()); known != keys_.end()) at[known->second] = &value;
        }
        if (at[kAction]) return at[kFrames] || at[kSize] ? add_event(at) : made(kNone);
        if (at[kFilename] && at[kName]) return add_frame(at);
        if (at[kBlocks] && at[kTotal]) return add_segment(at);
        if (at[kState] && at[kSize]) return add_block(at);
        if (at[kStage] && at[kName]) return add_note(at);
        return made(kNone);
    }

    int64_t number(const Value* value, int64_t missing) const {
        if (!value) return missing;
        Value held = resolved(*value);
        if (held.kind() == kInt || held.kind() == kBool) return held.number();
        if (held.kind() == kLong) return longs_[held.index()];
        return missing;
    }

    uint32_t text_id(const Value* value) {
        if (value) {
            Value held = resolved(*value);
            if (held.kind() == kText) return held.index();
        }
        return uint32_t(text(""));
    }

    int64_t stack_id(const Value* value) {
        if (!value) return 0;
        Value held = resolved(*value);
        return held.kind() == kStack ? held.index() : 0;
    }

    std::pair<int64_t, int64_t> pool(const Value* value) const {
        if (value) {
            Value held = resolved(*value);
            if (held.kind() == kTuple && tuples_[held.index()].size() == 2)
                return {number(&tuples_[held.index()][0], 0), number(&tuples_[held.index()][1], 0)};
        }
        return {kUnknown, kUnknown};
    }

    Value add_event(const std::array<const Value*, kKeys>& at) {
        uint32_t name = text_id(at[kAction]);
        auto known = actions_.find(name);
        uint8_t what = known == actions_.end() ? uint8_t(kActionOther) : known->second;
        int64_t where = number(at[what == kOom ? kDeviceFree : kAddr], kUnknown);
        int64_t size = number(at[kSize], 0), when = number(at[kTime], kUnknown);
        auto [first, second] = pool(at[kPool]);
        uint32_t meant = interned({text_id(at[kContext]), text_id(at[kMetadata]), first, second});
        uint16_t on = stream_of(number(at[kStreamKey], 0));
        uint32_t frames_of = uint32_t(stack_id(at[kFrames]));
        size_t rows = action.size();
        if (what == kFreeCompleted && rows && action.back() == kFreeRequested && addr.back() == where &&
            bytes.back() == size && stack.back() == frames_of && context.back() == meant && stream.back() == on) {
            action.back() = kFreed;
            return made(kEvent, int64_t(rows - 1));
        }
        if (rows >= kMostIndex) throw Failure{"it has more than 134 million entries"};
        action.push(what);
        addr.push(where);
        bytes.push(size);
        time.push(when);
        stream.push(on);
        stack.push(frames_of);
        context.push(meant);
        return made(kEvent, int64_t(rows));
    }

    uint16_t stream_of(int64_t handle) {
        auto [known, is_new] = stream_ids_.try_emplace(handle, uint16_t(streams.size()));
        if (is_new) {
            if (streams.size() >= 65535) throw Failure{"it has more streams than a snapshot does"};
            streams.push_back(handle);
        }
        return known->second;
    }

    uint32_t interned(const std::array<int64_t, 4>& meant) {
        if (!contexts.empty() && contexts[last_context_] == meant) return last_context_;
        auto [known, is_new] = context_ids_.try_emplace(meant, uint32_t(contexts.size()));
        if (is_new) contexts.push_back(meant);
        return last_context_ = known->second;
    }

    Value add_frame(const std::array<const Value*, kKeys>& at) {
        std::array<int64_t, 4> frame = {text_id(at[kName]), text_id(at[kFilename]), number(at[kLine], 0), 0};
        auto [known, is_new] = frame_ids_.try_emplace(frame, uint32_t(frames.size()));
        if (is_new) {
            if (frames.size() >= kMostTexts) throw Failure{"it has more frames than a snapshot does"};
            frames.push_back({frame[0], frame[1], frame[2]});
        }
        return made(kFrame, known->second);
    }

    int64_t stack_of(const std::vector<Value>& items) {
        std::array<int64_t, 4> key = {int64_t(items.size()), 0, 0, 0};
        uint64_t hash = 14695981039346656037ull;
        for (Value item : items) hash = (hash ^ item.index()) * 0x9e3779b97f4a7c15ull, hash ^= hash >> 31;
        key[1] = items.empty() ? 0 : int64_t(hash);
        auto& known = stack_ids_[key];
        for (uint32_t id : known) {
            int64_t begin = id ? stack_ends[id - 1] : 0;
            bool same = stack_ends[id] - begin == int64_t(items.size());
            for (size_t at = 0; same && at < items.size(); ++at)
                same = stack_frames[size_t(begin) + at] == int32_t(items[at].index());
            if (same) return id;
        }
        for (Value item : items) stack_frames.push(int32_t(item.index()));
        stack_ends.push(int64_t(stack_frames.size()));
        if (stack_ends.size() >= kMostIndex) throw Failure{"it has more stacks than a snapshot does"};
        known.push_back(uint32_t(stack_ends.size() - 1));
        return int64_t(stack_ends.size() - 1);
    }

    Value add_segment(const std::array<const Value*, kKeys>& at) {
        Value held = resolved(*at[kBlocks]);
        Run run = {kNone, 0, 0};
        if (held.kind() == kRun) run = runs_[held.index()];
        if (held.kind() == kStack && !held.index()) run.of = kBlock;  // an empty list
        if (run.of != kBlock) throw Failure{"a segment's blocks are none"};
        auto [first, second] = pool(at[kSegmentPool]);
        Value type = at[kSegmentType] ? resolved(*at[kSegmentType]) : made(kNone);
        bool large = type.kind() == kText && texts[type.index()] == "large";
        int64_t row = int64_t(segments.size());
        segment_blocks.push({row, run.first, run.count});
        segments.push({number(at[kDeviceKey], 0), number(at[kAddress], kUnknown), number(at[kTotal], 0),
                       number(at[kStreamKey], 0), large, first, second, number(at[kExpandable], 0),
                       stack_id(at[kFrames])});
        return made(kSegment, row);
    }

    Value add_block(const std::array<const Value*, kKeys>& at) {
        blocks.push({number(at[kAddress], kUnknown), number(at[kSize], 0), number(at[kRequested], kUnknown),
                     text_id(at[kState]), stack_id(at[kFrames])});
        return made(kBlock, int64_t(blocks.size() - 1));
    }

    Value add_note(const std::array<const Value*, kKeys>& at) {
        notes.push({number(at[kDeviceKey], 0), text_id(at[kStage]), text_id(at[kName]), number(at[kTime], kUnknown)});
        return made(kNote, int64_t(notes.size() - 1));
    }

    // ---- texts
    int64_t text(std::string_view content) {
        if (auto known = text_ids_.find(content); known != text_ids_.end()) return known->second;
        if (texts.size() >= kMostTexts) throw Failure{"it holds more texts than a snapshot does"};
        auto kept = std::make_unique<char[]>(content.size() + 1);
        std::memcpy(kept.get(), content.data(), content.size());
        std::string_view view(kept.get(), content.size());
        kept_.push_back(std::move(kept));
        texts.push_back(view);
        text_ids_[view] = uint32_t(texts.size() - 1);
        return int64_t(texts.size() - 1);
    }

    std::string text_of(Value value) const {
        Value held = resolved(value);
        return held.kind() == kText ? std::string(texts[held.index()]) : std::string();
    }

    // ---- what is neither row nor run
    void emit_run(std::string_view name, int64_t position, Value held) {
        Run run = held.kind() == kRun ? runs_[held.index()] : Run{kNone, 0, 0};
        if (held.kind() == kStack && held.index()) return;  // frames, which belong to no table of their own
        run_rows_.push_back({text(name), position, run.of, run.first});
        run_counts_.push_back(run.count);
    }

    void write(std::string& out, Value value, int depth) const {
        Value held = resolved(value);
        if (depth > kDeepest || out.size() > kLongest)
            throw Failure{"its settings are larger than those of a snapshot"};
        char shown[40];
        switch (held.kind()) {
            case kBool: out += held.number() ? "true" : "false"; return;
            case kInt:
            case kLong: out += std::to_string(number(&held, 0)); return;
            case kFloat:
                std::snprintf(shown, sizeof shown, "%.17g", floats_[held.index()]);
                out += std::isfinite(floats_[held.index()]) ? shown : "null";
                return;
            case kText: write_text(out, texts[held.index()]); return;
            case kDict: {
                out += '{';
                bool first = true;
                for (const auto& [key, item] : dicts_[held.index()].items) {
                    if (key.kind() != kText) continue;
                    if (!first) out += ',';
                    first = false;
                    write_text(out, texts[key.index()]);
                    out += ':';
                    write(out, item, depth + 1);
                }
                out += '}';
                return;
            }
            default: out += "null";
        }
    }

    static void write_text(std::string& out, std::string_view content) {
        out += '"';
        for (char letter : content) {
            if (letter == '"' || letter == '\\')
                out += '\\', out += letter;
            else if (uint8_t(letter) < 0x20)
                out += '?';
            else
                out += letter;
        }
        out += '"';
    }

    bool stopped_ = false;
    int64_t read_ = 0;
    std::string rest_;
    Value root_{};
    std::vector<Value> values_;
    size_t marks_ = 0;
    Chunked<uint32_t> memo_;
    std::vector<Dict> dicts_;
    std::vector<List> lists_;
    std::vector<std::vector<Value>> tuples_;
    std::vector<Run> runs_;
    std::vector<Value> others_;
    std::vector<int64_t> longs_;
    std::vector<double> floats_;
    std::vector<uint32_t> free_dicts_, free_lists_;
    std::vector<std::unique_ptr<char[]>> kept_;
    std::unordered_map<std::string_view, uint32_t> text_ids_;
    std::unordered_map<uint32_t, int> keys_;
    std::unordered_map<uint32_t, uint8_t> actions_;
    std::unordered_map<int64_t, uint16_t> stream_ids_;
    std::unordered_map<std::array<int64_t, 4>, uint32_t, Hash> context_ids_, frame_ids_;
    std::unordered_map<std::array<int64_t, 4>, int64_t, Hash> tuple_ids_;
    std::unordered_map<std::array<int64_t, 4>, std::vector<uint32_t>, Hash> stack_ids_;
    uint32_t last_context_ = 0;
};

// Runs something; keeps why it failed. Returns 1, 0 where the file is refused, or -1 where memory is short.
template <typename Work>
int guarded(Reader* reader, Work work) {
    try {
        work();
        return 1;
    } catch (const Failure& failure) {
        reader->error = failure.why;
        return 0;
    } catch (const std::bad_alloc&) {
        return -1;
    }
}

}  // namespace

// ---------------------------------------------------------------- the interface
// Tables and their columns, as `copy` takes them: see `_TABLES` in snapshot.py.

extern "C" {

int32_t opscope_snapshot_version() { return 1; }

void* opscope_snapshot_new() { return new (std::nothrow) Reader; }

void opscope_snapshot_free(void* reader) { delete static_cast<Reader*>(reader); }

int32_t opscope_snapshot_feed(void* reader, const char* data, size_t size) {
    auto* self = static_cast<Reader*>(reader);
    return guarded(self, [&] { self->feed(data, size); });
}

int32_t opscope_snapshot_finish(void* reader) {
    auto* self = static_cast<Reader*>(reader);
    return guarded(self, [&] { self->finish(); });
}

const char* opscope_snapshot_error(void* reader) { return static_cast<Reader*>(reader)->error.c_str(); }

const char* opscope_snapshot_settings(void* reader) { return static_cast<Reader*>(reader)->settings_.c_str(); }

size_t opscope_snapshot_height(void* reader, int32_t table) {
    auto& self = *static_cast<Reader*>(reader);
    switch (table) {
        case 0: return self.action.size();
        case 1: return self.streams.size();
        case 2: return self.contexts.size();
        case 3: return self.frames.size();
        case 4: return self.stack_frames.size();
        case 5: return self.stack_ends.size();
        case 6: return self.segments.size();
        case 7: return self.segment_blocks.size();
        case 8: return self.blocks.size();
        case 9: return self.notes.size();
        case 10: return self.run_rows_.size();
        case 11: return self.run_counts_.size();
        case 12: return self.texts.size();
        default: return 0;
    }
}

// Copies a column of the events (table 0), or a whole other table, and frees it where it is large.
void opscope_snapshot_take(void* reader, int32_t table, int32_t column, void* to) {
    auto& self = *static_cast<Reader*>(reader);
    auto copy = [&](const auto& rows) {
        if (!rows.empty()) std::memcpy(to, rows.data(), rows.size() * sizeof(rows[0]));
    };
    switch (table * 8 + column) {
        case 0: return self.action.take(to);
        case 1: return self.addr.take(to);
        case 2: return self.bytes.take(to);
        case 3: return self.stream.take(to);
        case 4: return self.time.take(to);
        case 5: return self.stack.take(to);
        case 6: return self.context.take(to);
        case 8: return copy(self.streams);
        case 16: return copy(self.contexts);
        case 24: return copy(self.frames);
        case 32: return self.stack_frames.take(to);
        case 40: return self.stack_ends.take(to);
        case 48: return self.segments.take(to);
        case 56: return self.segment_blocks.take(to);
        case 64: return self.blocks.take(to);
        case 72: return self.notes.take(to);
        case 80: return copy(self.run_rows_);
        case 88: return copy(self.run_counts_);
        default: return;
    }
}

size_t opscope_snapshot_text(void* reader, size_t at, const char** text) {
    auto& self = *static_cast<Reader*>(reader);
    *text = self.texts[at].data();
    return self.texts[at].size();
}

}  // extern "C"

// The collector's file: rows are gathered table by table, and written as blocks at once.
//
// What has been written survives whatever becomes of the process: nothing is buffered here beyond `write`.
#pragma once

#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <deque>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tables.h"

namespace opscope {

class File {
public:
    // Creates a file that was not there; `isOpen` says whether that went well.
    explicit File(const std::string& path)
        : descriptor_(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0644)) {
        if (isOpen()) writeAll(kHeader, sizeof kHeader - 1);
    }

    bool isOpen() const { return descriptor_ >= 0; }

    // Whether everything could be written: a disk may be full.
    bool whole() const { return whole_; }

#define OPSCOPE_ADD(Row, table, COLUMNS) \
    void add(const Row& row) { append(TableNumber::table, &row, sizeof row); }
    OPSCOPE_TABLES(OPSCOPE_ADD)

    // Returns the number of a text, which is written before what refers to it.
    u4 string(std::string_view text) {
        if (auto found = numbers_.find(text); found != numbers_.end()) return found->second;
        texts_.emplace_back(text);
        u4 number = static_cast<u4>(texts_.size() - 1), size = static_cast<u4>(text.size());
        numbers_.emplace(texts_.back(), number);
        append(TableNumber::strings, &number, sizeof number);
        append(TableNumber::strings, &size, sizeof size);
        append(TableNumber::strings, text.data(), text.size());
        return number;
    }

    // Writes what was added: texts first, as the tables have them.
    void write() {
        if (!isOpen()) return;
        std::vector<char> out;
        for (u4 table = 0; table < rows_.size(); ++table) {
            auto& rows = rows_[table];
            if (rows.empty()) continue;
            const u4 size = static_cast<u4>(rows.size());
            out.insert(out.end(), reinterpret_cast<const char*>(&table), reinterpret_cast<const char*>(&table + 1));
            out.insert(out.end(), reinterpret_cast<const char*>(&size), reinterpret_cast<const char*>(&size + 1));
            out.insert(out.end(), rows.begin(), rows.end());
            rows.clear();
        }
        writeAll(out.data(), out.size());
    }

    // Lets go of the file without writing: in a child process it is the parent's.
    void abandon() {
        if (isOpen()) ::close(descriptor_);
        descriptor_ = -1;
    }

private:
    void append(TableNumber table, const void* from, std::size_t size) {
        auto& rows = rows_[static_cast<std::size_t>(table)];
        const char* bytes = static_cast<const char*>(from);
        rows.insert(rows.end(), bytes, bytes + size);
    }

    void writeAll(const char* from, std::size_t size) {
        while (size && whole_) {
            const ssize_t written = ::write(descriptor_, from, size);
            if (written < 0 && errno == EINTR) continue;
            if (written < 0)
                whole_ = false;  // the rest would follow a hole
            else {
                from += written;
                size -= static_cast<std::size_t>(written);
            }
        }
    }

    int descriptor_;
    bool whole_ = true;
    std::array<std::vector<char>, static_cast<std::size_t>(TableNumber::count)> rows_;
    std::deque<std::string> texts_;  // never moved: the map's keys point into them
    std::unordered_map<std::string_view, u4> numbers_;
};

}  // namespace opscope

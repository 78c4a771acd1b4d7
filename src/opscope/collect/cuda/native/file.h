// The collector's file: rows are gathered table by table, and written as blocks at once.
//
// What has been written survives whatever becomes of the process: nothing is buffered here beyond `write`.
#pragma once

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <time.h>
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
    explicit File(const std::string& path) : path_(path) {
        open(O_CREAT | O_EXCL);
        if (isOpen()) writeAll(kHeader, sizeof kHeader - 1);
    }

    bool isOpen() const { return descriptor_ >= 0; }

#define OPSCOPE_ADD(Row, table, COLUMNS) \
    void add(const Row& row) { append(TableNumber::table, &row, sizeof row); }
    OPSCOPE_TABLES(OPSCOPE_ADD)

    // Returns the number of a text, which is written before what refers to it. Very long ones are cut.
    u4 string(std::string_view text) {
        text = text.substr(0, kLongestText);
        if (auto found = numbers_.find(text); found != numbers_.end()) return found->second;
        if (remembered_ > kMostRemembered) {  // those that come again are written again
            numbers_.clear();
            texts_.clear();
            remembered_ = 0;
        }
        remembered_ += text.size() + kEntry;
        texts_.emplace_back(text);
        u4 number = next_++, size = static_cast<u4>(text.size());
        numbers_.emplace(texts_.back(), number);
        append(TableNumber::strings, &number, sizeof number);
        append(TableNumber::strings, &size, sizeof size);
        append(TableNumber::strings, text.data(), text.size());
        return number;
    }

    // How much was added and not yet written.
    std::size_t waiting() const { return waiting_; }

    // Writes what was added: texts first, as the tables have them.
    void write() {
        waiting_ = 0;
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
        if (!out.empty() && isOurs()) writeAll(out.data(), out.size());
    }

    // Lets go of the file without writing: in a child process it is the parent's.
    void abandon() {
        if (isOurs()) ::close(descriptor_);
        descriptor_ = -1;
        path_.clear();
    }

private:
    static constexpr std::size_t kLongestText = 1 << 16;
    static constexpr std::size_t kMostRemembered = 8 << 20;
    static constexpr std::size_t kEntry = 100;  // what remembering takes beside the text
    static constexpr int kHigh = 900;           // programs expect the lowest numbers for files of their own

    void open(int how) {
        const int low = ::open(path_.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC | how, 0644);
        if (low < 0) return;
        const int high = ::fcntl(low, F_DUPFD_CLOEXEC, kHigh);
        if (high >= 0) ::close(low);
        descriptor_ = high >= 0 ? high : low;
        struct stat found;
        if (::fstat(descriptor_, &found) == 0) {
            device_ = found.st_dev;
            inode_ = found.st_ino;
        }
    }

    // Whether the descriptor is still that of our file: a program may close all that it does not know, and get the
    // same number for a file of its own. Then ours is opened again.
    bool isOurs() {
        struct stat found;
        const bool is =
            isOpen() && ::fstat(descriptor_, &found) == 0 && found.st_dev == device_ && found.st_ino == inode_;
        if (is || path_.empty() || !whole_) return is;
        const auto device = device_;
        const auto inode = inode_;
        descriptor_ = -1;
        open(0);
        whole_ = isOpen() && device_ == device && inode_ == inode;
        return whole_;
    }

    void append(TableNumber table, const void* from, std::size_t size) {
        auto& rows = rows_[static_cast<std::size_t>(table)];
        const char* bytes = static_cast<const char*>(from);
        rows.insert(rows.end(), bytes, bytes + size);
        waiting_ += size;
    }

    // Beyond a limit on files' sizes the system sends a signal that ends programs: it is not the program's, so it is
    // kept from it.
    void writeAll(const char* from, std::size_t size) {
        sigset_t only, before, pending;
        sigemptyset(&only);
        sigaddset(&only, SIGXFSZ);
        sigpending(&pending);
        pthread_sigmask(SIG_BLOCK, &only, &before);
        while (size && whole_) {
            const ssize_t written = ::write(descriptor_, from, size);
            if (written < 0 && errno == EINTR) continue;
            if (written < 0) {
                const timespec now = {};
                if (errno == EFBIG && !sigismember(&pending, SIGXFSZ)) sigtimedwait(&only, nullptr, &now);
                whole_ = false;  // the rest would follow a hole
            } else {
                from += written;
                size -= static_cast<std::size_t>(written);
            }
        }
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
    }

    std::string path_;
    int descriptor_ = -1;
    dev_t device_ = 0;
    ino_t inode_ = 0;
    bool whole_ = true;  // whether everything could be written: a disk may be full
    std::size_t waiting_ = 0;
    std::array<std::vector<char>, static_cast<std::size_t>(TableNumber::count)> rows_;
    u4 next_ = 0;
    std::size_t remembered_ = 0;
    std::deque<std::string> texts_;  // never moved: the map's keys point into them
    std::unordered_map<std::string_view, u4> numbers_;
};

}  // namespace opscope

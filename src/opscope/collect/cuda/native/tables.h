// What the collector writes: the tables of a file, and their columns.
//
// A file is a line of text that names the format, one line for every table with its columns and their types, an empty
// line, and blocks: the table's number (from 0, in the order of the lines), how many bytes follow, and as many whole
// rows. So a reader needs no list of its own, and files of earlier versions stay readable. Of strings, a row is a
// number, a length and as many bytes; the other tables refer to them by that number, and it stands before they do.
// All numbers are little-endian; times are nanoseconds of CUPTI's clock, which is the
// system's real-time clock unless another client of CUPTI sets another (the rows of clocks tell).
#pragma once

#include <cstdint>

#define OPSCOPE_FACTS(COLUMN) /* what is known of the process: both are strings */ \
    COLUMN(u4, key)                                                                \
    COLUMN(u4, value)

#define OPSCOPE_CLOCKS(COLUMN) /* the same moment by several clocks */ \
    COLUMN(u8, cupti_ns)                                               \
    COLUMN(u8, realtime_ns)                                            \
    COLUMN(u8, monotonic_ns)

#define OPSCOPE_FLUSHES(COLUMN) /* CUPTI was asked for all that had ended; buffers that it kept hold later records */ \
    COLUMN(u8, time_ns)                                                                                               \
    COLUMN(u4, kept_buffers)

#define OPSCOPE_EVENTS(COLUMN) /* what happened to the collector: started, failed, stepped aside, finished */ \
    COLUMN(u8, time_ns)                                                                                       \
    COLUMN(u4, event)                                                                                         \
    COLUMN(u4, text)

#define OPSCOPE_DROPPED(COLUMN) /* records that CUPTI could not keep */ COLUMN(u8, records)

#define OPSCOPE_THREADS(COLUMN) \
    COLUMN(u4, number)          \
    COLUMN(u4, id)              \
    COLUMN(u4, name)

#define OPSCOPE_DEVICES(COLUMN)                 \
    COLUMN(u4, device)                          \
    COLUMN(u4, name)                            \
    COLUMN(u4, uuid)                            \
    COLUMN(u4, major)                           \
    COLUMN(u4, minor)                           \
    COLUMN(u4, multiprocessors)                 \
    COLUMN(u4, warps_per_multiprocessor)        \
    COLUMN(u4, threads_per_warp)                \
    COLUMN(u4, registers_per_multiprocessor)    \
    COLUMN(u4, shared_bytes_per_multiprocessor) \
    COLUMN(u8, memory_bytes)

#define OPSCOPE_CONTEXTS(COLUMN) \
    COLUMN(u4, context)          \
    COLUMN(u4, device)           \
    COLUMN(u4, default_stream)

#define OPSCOPE_NAMES(COLUMN) /* given through NVTX: to threads, streams and devices, by CUPTI's numbers of these */ \
    COLUMN(u4, object_kind)                                                                                          \
    COLUMN(u4, object)                                                                                               \
    COLUMN(u4, name)

#define OPSCOPE_CALLS(COLUMN) /* functions of the API: the number that rows of api have, and its name */ \
    COLUMN(u4, call)                                                                                     \
    COLUMN(u4, name)

#define OPSCOPE_API(COLUMN) \
    COLUMN(u8, start_ns)    \
    COLUMN(u8, duration_ns) \
    COLUMN(u4, correlation) \
    COLUMN(u4, thread)      \
    COLUMN(u2, call)

#define OPSCOPE_FAILURES(COLUMN) /* calls that returned an error */ \
    COLUMN(u4, correlation)                                         \
    COLUMN(u4, call)                                                \
    COLUMN(u4, status)

#define OPSCOPE_LAUNCHES(COLUMN) /* each way in which kernels were launched, once; rows of kernels refer to it */ \
    COLUMN(u4, number)                                                                                            \
    COLUMN(u4, mangled)                                                                                           \
    COLUMN(u4, name)                                                                                              \
    COLUMN(u4, device)                                                                                            \
    COLUMN(u4, context)                                                                                           \
    COLUMN(u4, stream)                                                                                            \
    COLUMN(i4, grid_x)                                                                                            \
    COLUMN(i4, grid_y)                                                                                            \
    COLUMN(i4, grid_z)                                                                                            \
    COLUMN(i4, block_x)                                                                                           \
    COLUMN(i4, block_y)                                                                                           \
    COLUMN(i4, block_z)                                                                                           \
    COLUMN(u4, registers)                                                                                         \
    COLUMN(i4, static_shared_bytes)                                                                               \
    COLUMN(i4, dynamic_shared_bytes)

#define OPSCOPE_KERNELS(COLUMN) \
    COLUMN(u8, start_ns)        \
    COLUMN(u8, duration_ns)     \
    COLUMN(u4, correlation)     \
    COLUMN(u4, launch)

#define OPSCOPE_NODES(COLUMN) /* kernels that are nodes of a CUDA graph */ \
    COLUMN(u8, start_ns)                                                   \
    COLUMN(u8, duration_ns)                                                \
    COLUMN(u4, correlation)                                                \
    COLUMN(u4, launch)                                                     \
    COLUMN(u4, graph)                                                      \
    COLUMN(u8, node)

#define OPSCOPE_COPIES(COLUMN) \
    COLUMN(u8, start_ns)       \
    COLUMN(u8, duration_ns)    \
    COLUMN(u8, bytes)          \
    COLUMN(u4, correlation)    \
    COLUMN(u4, device)         \
    COLUMN(u4, context)        \
    COLUMN(u4, stream)         \
    COLUMN(u1, direction)      \
    COLUMN(u1, source)         \
    COLUMN(u1, destination)    \
    COLUMN(u4, graph)          \
    COLUMN(u8, node)

#define OPSCOPE_FILLS(COLUMN) \
    COLUMN(u8, start_ns)      \
    COLUMN(u8, duration_ns)   \
    COLUMN(u8, bytes)         \
    COLUMN(u4, correlation)   \
    COLUMN(u4, device)        \
    COLUMN(u4, context)       \
    COLUMN(u4, stream)        \
    COLUMN(u1, memory)        \
    COLUMN(u4, graph)         \
    COLUMN(u8, node)

#define OPSCOPE_UNIFIED_MEMORY(COLUMN) /* what the driver did to managed memory */ \
    COLUMN(u8, start_ns)                                                           \
    COLUMN(u8, end_ns)                                                             \
    COLUMN(u8, address)                                                            \
    COLUMN(u8, value)                                                              \
    COLUMN(u4, kind)                                                               \
    COLUMN(u4, source)                                                             \
    COLUMN(u4, destination)                                                        \
    COLUMN(u4, stream)                                                             \
    COLUMN(u4, flags)                                                              \
    COLUMN(u4, process)

#define OPSCOPE_SYNCHRONIZATIONS(COLUMN) \
    COLUMN(u8, start_ns)                 \
    COLUMN(u8, duration_ns)              \
    COLUMN(u4, correlation)              \
    COLUMN(u4, context)                  \
    COLUMN(u4, stream)                   \
    COLUMN(u4, event)                    \
    COLUMN(u4, kind)

#define OPSCOPE_RANGES(COLUMN) /* where a range of NVTX begins */ \
    COLUMN(u8, time_ns)                                           \
    COLUMN(u8, number)                                            \
    COLUMN(u4, thread)                                            \
    COLUMN(u4, name)                                              \
    COLUMN(u4, domain)                                            \
    COLUMN(u1, style)

#define OPSCOPE_RANGE_ENDS(COLUMN) \
    COLUMN(u8, time_ns)            \
    COLUMN(u8, number)

#define OPSCOPE_OVERHEADS(COLUMN) \
    COLUMN(u8, start_ns)          \
    COLUMN(u8, duration_ns)       \
    COLUMN(u4, kind)

#define OPSCOPE_TABLES(TABLE)                                          \
    TABLE(Facts, facts, OPSCOPE_FACTS)                                 \
    TABLE(Clock, clocks, OPSCOPE_CLOCKS)                               \
    TABLE(Flush, flushes, OPSCOPE_FLUSHES)                             \
    TABLE(Event, events, OPSCOPE_EVENTS)                               \
    TABLE(Dropped, dropped, OPSCOPE_DROPPED)                           \
    TABLE(Thread, threads, OPSCOPE_THREADS)                            \
    TABLE(Device, devices, OPSCOPE_DEVICES)                            \
    TABLE(Context, contexts, OPSCOPE_CONTEXTS)                         \
    TABLE(Name, names, OPSCOPE_NAMES)                                  \
    TABLE(Call, calls, OPSCOPE_CALLS)                                  \
    TABLE(Api, api, OPSCOPE_API)                                       \
    TABLE(Failure, failures, OPSCOPE_FAILURES)                         \
    TABLE(Launch, launches, OPSCOPE_LAUNCHES)                          \
    TABLE(Kernel, kernels, OPSCOPE_KERNELS)                            \
    TABLE(Node, nodes, OPSCOPE_NODES)                                  \
    TABLE(Copy, copies, OPSCOPE_COPIES)                                \
    TABLE(Fill, fills, OPSCOPE_FILLS)                                  \
    TABLE(UnifiedMemory, unified_memory, OPSCOPE_UNIFIED_MEMORY)       \
    TABLE(Synchronization, synchronizations, OPSCOPE_SYNCHRONIZATIONS) \
    TABLE(Range, ranges, OPSCOPE_RANGES)                               \
    TABLE(RangeEnd, range_ends, OPSCOPE_RANGE_ENDS)                    \
    TABLE(Overhead, overheads, OPSCOPE_OVERHEADS)

namespace opscope {

using u1 = std::uint8_t;
using u2 = std::uint16_t;
using u4 = std::uint32_t;
using u8 = std::uint64_t;
using i4 = std::int32_t;

#define OPSCOPE_FIELD(type, name) type name;
#define OPSCOPE_ROW(Row, table, COLUMNS) \
    struct __attribute__((packed)) Row { \
        COLUMNS(OPSCOPE_FIELD)           \
    };
OPSCOPE_TABLES(OPSCOPE_ROW)

#define OPSCOPE_COLUMN_TEXT(type, name) " " #name ":" #type
#define OPSCOPE_TABLE_TEXT(Row, table, COLUMNS) #table COLUMNS(OPSCOPE_COLUMN_TEXT) "\n"
inline constexpr char kHeader[] = "opscope.cuda/1\nstrings\n" OPSCOPE_TABLES(OPSCOPE_TABLE_TEXT) "\n";

enum class TableNumber : u4 {
    strings,
#define OPSCOPE_NUMBER(Row, table, COLUMNS) table,
    OPSCOPE_TABLES(OPSCOPE_NUMBER) count
};

}  // namespace opscope

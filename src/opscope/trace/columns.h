// The tables of a trace and their columns: the one list of them, for C++ and for Python.
//
// kineto.cpp makes its rows from it, opscope.trace.columns reads it as text; so every COLUMN stands on one line. The kinds:
//   THREAD   number of a (process, thread) pair of the file, from 0
//   NAME     text of which every row has one
//   TEXT     text that may be missing
//   KIND     kernel, memcpy or memset
//   INT64, INT32, FLOAT64   numbers that may be missing
// Times are nanoseconds of the trace's clock, durations nanoseconds; devices and streams have the producer's numbers.

// clang-format off
#define OPSCOPE_OPERATORS(COLUMN) /* operator slices (cpu_op), one row each */ \
    COLUMN(thread, THREAD, "the thread that it ran on") \
    COLUMN(name, NAME, "as recorded: aten::addmm") \
    COLUMN(start_ns, INT64, "when it began") \
    COLUMN(duration_ns, INT64, "how long it took on the host") \
    COLUMN(external_id, INT64, "the number by which other records refer to it") \
    COLUMN(sequence_number, INT64, "autograd's number, which forward and backward operators share") \
    COLUMN(forward_thread, INT64, "autograd's number of the thread of its forward operator; 0 for forward operators") \
    COLUMN(input_dims, TEXT, "shapes of the inputs, as JSON; null where they were not recorded") \
    COLUMN(input_types, TEXT, "types of the inputs, as JSON") \
    COLUMN(input_strides, TEXT, "strides of the inputs, as JSON") \
    COLUMN(concrete_inputs, TEXT, "values of inputs that are no tensors, as JSON") \
    COLUMN(kernel_file, TEXT, "the Python file of a Triton kernel that torch.compile generated") \
    COLUMN(message_bytes, INT64, "of a collective, the larger of its messages")

#define OPSCOPE_LAUNCHES(COLUMN) /* calls of the CUDA or HIP runtime and driver, one row each */ \
    COLUMN(thread, THREAD, "the thread that called") \
    COLUMN(name, NAME, "the function: cudaLaunchKernel") \
    COLUMN(start_ns, INT64, "when the call began") \
    COLUMN(duration_ns, INT64, "how long it took on the host") \
    COLUMN(correlation, INT64, "the number that its activities share") \
    COLUMN(external_id, INT64, "the number of the operator around it") \
    COLUMN(status, INT32, "what it returned, where that was recorded: 0 is success")

#define OPSCOPE_ACTIVITIES(COLUMN) /* kernels, copies and fills: the work of the devices, one row each */ \
    COLUMN(kind, KIND, "kernel, memcpy or memset") \
    COLUMN(name, NAME, "the kernel's function, or which copy") \
    COLUMN(device, INT32, "the device") \
    COLUMN(stream, INT64, "the stream") \
    COLUMN(context, INT64, "the context, where recorded: streams of two contexts may have the same number") \
    COLUMN(start_ns, INT64, "when it began on the device") \
    COLUMN(duration_ns, INT64, "how long it took on the device") \
    COLUMN(correlation, INT64, "the number of the call that launched it; nodes of one graph launch share it") \
    COLUMN(external_id, INT64, "the number of the operator that launched it") \
    COLUMN(graph_id, INT64, "the CUDA graph that it is a node of") \
    COLUMN(graph_node_id, INT64, "which node") \
    COLUMN(bytes, INT64, "how much a copy or fill moved; of a collective, the larger of its messages") \
    COLUMN(grid, TEXT, "thread blocks, x,y,z") \
    COLUMN(block, TEXT, "threads of a block, x,y,z") \
    COLUMN(registers_per_thread, INT32, "registers of a thread") \
    COLUMN(shared_memory_bytes, INT64, "shared memory of a thread block") \
    COLUMN(theoretical_occupancy_percent, FLOAT64, "from launch and device (Kineto: est. achieved occupancy %)") \
    COLUMN(collective, TEXT, "the collective operation that it is a part of")

#define OPSCOPE_ANNOTATIONS(COLUMN) /* named host ranges (record_function, ProfilerStep#N), one row each */ \
    COLUMN(thread, THREAD, "the thread") \
    COLUMN(name, NAME, "the range's name") \
    COLUMN(start_ns, INT64, "when it began") \
    COLUMN(duration_ns, INT64, "how long it lasted")

#define OPSCOPE_FRAMES(COLUMN) /* calls of Python functions, where stacks were recorded, one row each */ \
    COLUMN(thread, THREAD, "the thread") \
    COLUMN(name, NAME, "file(line): function, or nn.Module: name") \
    COLUMN(start_ns, INT64, "when it began") \
    COLUMN(duration_ns, INT64, "how long it lasted")

#define OPSCOPE_ALLOCATIONS(COLUMN) /* allocations and releases of memory, where recorded, one row each */ \
    COLUMN(thread, THREAD, "the thread") \
    COLUMN(time_ns, INT64, "when") \
    COLUMN(device_type, INT32, "0 is the host, 1 CUDA (c10::DeviceType)") \
    COLUMN(device, INT32, "the device") \
    COLUMN(bytes, INT64, "how much; negative for a release") \
    COLUMN(total_allocated_bytes, INT64, "how much was allocated then") \
    COLUMN(total_reserved_bytes, INT64, "how much the allocator then held of the device") \
    COLUMN(address, INT64, "the address: what links a release to its allocation")

#define OPSCOPE_OVERHEADS(COLUMN) /* what the profiler and the driver record of themselves, one row each */ \
    COLUMN(name, NAME, "what: Lazy Function Loading, Activity Buffer Request") \
    COLUMN(start_ns, INT64, "when it began") \
    COLUMN(duration_ns, INT64, "how long it took")

#define OPSCOPE_RANGES(COLUMN) /* named host ranges that begin and end anywhere (nvtxRangeStart), one row each */ \
    COLUMN(thread, THREAD, "the thread that began it") \
    COLUMN(name, NAME, "the range's name") \
    COLUMN(start_ns, INT64, "when it began") \
    COLUMN(duration_ns, INT64, "how long it lasted")

#define OPSCOPE_SYNCHRONIZATIONS(COLUMN) /* waits of the host and of streams, where recorded, one row each */ \
    COLUMN(name, NAME, "for what: a stream, an event, a context") \
    COLUMN(device, INT32, "the device") \
    COLUMN(stream, INT64, "the stream, where one was meant") \
    COLUMN(event, INT64, "the event, where one was meant") \
    COLUMN(start_ns, INT64, "when it began") \
    COLUMN(duration_ns, INT64, "how long it took on the host") \
    COLUMN(correlation, INT64, "the number of the call that waited, or that made a stream wait") \
    COLUMN(awaited_stream, INT64, "where a stream waits for an event: the stream in which the event was recorded") \
    COLUMN(recorded_by, INT64, "the number of the call that recorded that event")

#define OPSCOPE_MIGRATIONS(COLUMN) /* what the driver did to unified memory, one row each */ \
    COLUMN(name, NAME, "what: a transfer and its direction, a page fault, thrashing") \
    COLUMN(thread, THREAD, "the process (its first thread)") \
    COLUMN(device, INT32, "the device") \
    COLUMN(start_ns, INT64, "when it began") \
    COLUMN(duration_ns, INT64, "how long it took; 0 where only a moment is known") \
    COLUMN(address, INT64, "the first address") \
    COLUMN(bytes, INT64, "how much was moved, or lies in what was mapped from afar or thrashed; null for faults") \
    COLUMN(faults, INT64, "how many page faults it stands for") \
    COLUMN(cause, TEXT, "why, or by which access, where recorded")

#define OPSCOPE_COMMUNICATIONS(COLUMN) /* what PyTorch says of collectives and messages: one row per call, and per kernel */ \
    COLUMN(collective, TEXT, "the operation: allreduce, _allgather_base, send, wait") \
    COLUMN(start_ns, INT64, "when the call or the kernel began") \
    COLUMN(duration_ns, INT64, "how long it took: a call on the host, a kernel on the device") \
    COLUMN(external_id, INT64, "the number that a call and its kernels share") \
    COLUMN(correlation, INT64, "of a kernel, the number of its launch; null for a call") \
    COLUMN(group, TEXT, "the name of the process group: 0, or a hash") \
    COLUMN(group_description, TEXT, "what the program calls it: default_pg, dp_shard") \
    COLUMN(group_ranks, TEXT, "its ranks, as JSON; PyTorch cuts the list after 30") \
    COLUMN(group_size, INT32, "how many ranks it has") \
    COLUMN(first_rank, INT32, "of a call, the first rank of the group") \
    COLUMN(rank_stride, INT32, "of a call, how far apart the ranks of the group are") \
    COLUMN(group_rank, INT32, "of a call, this process's place in the group; of a message, that of the other process") \
    COLUMN(sequence, INT64, "the number of the collective within its group, where recorded") \
    COLUMN(element_type, TEXT, "PyTorch's name of the elements' type: Float, BFloat16") \
    COLUMN(elements_in, INT64, "elements that go in") \
    COLUMN(elements_out, INT64, "elements that come out") \
    COLUMN(splits_in, TEXT, "where ranks are sent different numbers of elements, these, as JSON") \
    COLUMN(splits_out, TEXT, "where ranks send back different numbers of elements, these, as JSON") \
    COLUMN(source, INT32, "the rank of the group that a message comes from") \
    COLUMN(destination, INT32, "the rank of the group that a message goes to")

#define OPSCOPE_COUNTERS(COLUMN) /* samples of power, clocks, utilisation and the like, one row each */ \
    COLUMN(time_ns, INT64, "when") \
    COLUMN(device, INT32, "the device; null where the record does not name one") \
    COLUMN(name, NAME, "the quantity with its unit: Power (W)") \
    COLUMN(value, FLOAT64, "how much")

// In the order in which their numbers stand in the interface.
#define OPSCOPE_TABLES(TABLE) \
    TABLE(Operators, OPSCOPE_OPERATORS) \
    TABLE(Launches, OPSCOPE_LAUNCHES) \
    TABLE(Activities, OPSCOPE_ACTIVITIES) \
    TABLE(Annotations, OPSCOPE_ANNOTATIONS) \
    TABLE(Frames, OPSCOPE_FRAMES) \
    TABLE(Allocations, OPSCOPE_ALLOCATIONS) \
    TABLE(Overheads, OPSCOPE_OVERHEADS) \
    TABLE(Ranges, OPSCOPE_RANGES) \
    TABLE(Synchronizations, OPSCOPE_SYNCHRONIZATIONS) \
    TABLE(Migrations, OPSCOPE_MIGRATIONS) \
    TABLE(Communications, OPSCOPE_COMMUNICATIONS) \
    TABLE(Counters, OPSCOPE_COUNTERS)

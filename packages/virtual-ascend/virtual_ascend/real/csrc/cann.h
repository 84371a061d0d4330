// Shared by the parts of the stub CANN. Nothing here includes torch or CANN.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

// Sets how many NPUs exist, each one's memory, and what they report about themselves. Called once, before torch_npu is
// loaded.
void virtual_ascend_cann_configure(int devices, uint64_t memory, const char* soc, const char* cann_version);

// Between these two calls, the CPU computes what this thread's operators should have written, so an operator that the
// stub does not answer is no error.
void virtual_ascend_cann_cover();
void virtual_ascend_cann_uncover();

// Runs `run(argument)` in a queue's thread, in order, after everything that `stream` waits for; later calls on the
// stream wait for it. A nonzero result becomes the stream's error.
void virtual_ascend_cann_enqueue(void* queue, void* stream, int (*run)(void*), void* argument);

// Whether a queue has no work left.
int virtual_ascend_cann_is_idle(void* queue);

// Waits for a stream's pending work before its memory is read or written.
void virtual_ascend_cann_settle(void* stream);

// Whether any stream has pending work.
int virtual_ascend_cann_is_pending();

// The stream of this thread's last recorded event.
void* virtual_ascend_cann_last_recorded();

// Between these two calls, this thread's copies to or from host memory [host, host + size) arrive when something waits
// for them. `kept` stays alive until then and is freed with `drop`.
void virtual_ascend_cann_allow_delay(const void* host, size_t size, void* kept, void (*drop)(void*));
void virtual_ascend_cann_allow_no_delay();

// The next operator that this thread requests from CANN fails with this message; an empty message cancels that.
void virtual_ascend_cann_fail(const char* message);

// The requested faults: device/csrc/faults.h.
void virtual_ascend_cann_die_at_collective(int64_t collective, int rank);
void virtual_ascend_cann_slow_collectives(double seconds, int rank);
void virtual_ascend_cann_limit_bandwidth(double gigabytes_per_second, int rank);
void virtual_ascend_cann_fail_allocation(int64_t allocation, int rank);
void virtual_ascend_cann_fail_allocations_above(int64_t bytes, int rank);
void virtual_ascend_cann_set_rank(int rank);
int virtual_ascend_cann_rank();
double virtual_ascend_cann_at_collective(const char* name, int64_t bytes);

// Functions without a body in the stub end here. Returns 0, CANN's success; HCCL's functions fail.
int virtual_ascend_cann_unanswered(const char* name);
}

namespace virtual_ascend_cann {

// The CANN error codes that are used here.
constexpr int kSuccess = 0;
constexpr int kInvalidParameter = 100000;
constexpr int kOutOfMemory = 207001;
constexpr int kInvalidDevice = 107001;
constexpr int kNoContext = 107002;
constexpr int kTimedOut = 107020;       // ACL_ERROR_RT_STREAM_SYNC_TIMEOUT
constexpr int kCommunication = 507011;  // ACL_ERROR_RT_MODEL_EXECUTE, reported for a failed task of a stream

}  // namespace virtual_ascend_cann

// What the parts of the stub CANN share. Nothing here includes torch or CANN.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

// How many NPUs there are, the memory of each, and what they say they are. Called once, before torch_npu is loaded.
void virtual_ascend_cann_configure(int devices, uint64_t memory, const char* soc, const char* cann_version);

// Between these two calls the CPU computes what the operators of this thread should have written: that the stub has no
// answer for an operator is no fault then.
void virtual_ascend_cann_cover();
void virtual_ascend_cann_uncover();

// Runs `run(argument)` in the thread of a queue, one after the other, after all that `stream` waits for; what is called on
// the stream later waits for it. A result that is not 0 is the stream's error.
void virtual_ascend_cann_enqueue(void* queue, void* stream, int (*run)(void*), void* argument);

// Whether a queue has nothing left to do.
int virtual_ascend_cann_is_idle(void* queue);

// Waits for what has been put on a stream: before its memory is read or written.
void virtual_ascend_cann_settle(void* stream);

// Whether any stream has something that is not done.
int virtual_ascend_cann_is_pending();

// The stream that this thread's last event was recorded on.
void* virtual_ascend_cann_last_recorded();

// Between these two calls this thread's copies from and to the host's memory [host, host + size) come when they are
// waited for. What is `kept` lives until then, and goes by `drop`.
void virtual_ascend_cann_allow_delay(const void* host, size_t size, void* kept, void (*drop)(void*));
void virtual_ascend_cann_allow_no_delay();

// The next operator that this thread asks CANN for fails with this message; an empty one ends that.
void virtual_ascend_cann_fail(const char* message);

// The faults that are asked for: device/csrc/faults.h.
void virtual_ascend_cann_die_at_collective(int64_t collective, int rank);
void virtual_ascend_cann_slow_collectives(double seconds, int rank);
void virtual_ascend_cann_limit_bandwidth(double gigabytes_per_second, int rank);
void virtual_ascend_cann_fail_allocation(int64_t allocation, int rank);
void virtual_ascend_cann_fail_allocations_above(int64_t bytes, int rank);
void virtual_ascend_cann_set_rank(int rank);
int virtual_ascend_cann_rank();
double virtual_ascend_cann_at_collective(const char* name, int64_t bytes);

// The functions that the stub has no body for end here. Returns 0, which is CANN's success; HCCL's fail.
int virtual_ascend_cann_unanswered(const char* name);
}

namespace virtual_ascend_cann {

// CANN's error codes, as far as they are given here.
constexpr int kSuccess = 0;
constexpr int kInvalidParameter = 100000;
constexpr int kOutOfMemory = 207001;
constexpr int kInvalidDevice = 107001;
constexpr int kNoContext = 107002;
constexpr int kTimedOut = 107020;       // ACL_ERROR_RT_STREAM_SYNC_TIMEOUT
constexpr int kCommunication = 507011;  // ACL_ERROR_RT_MODEL_EXECUTE, which a failed task of a stream shows as

}  // namespace virtual_ascend_cann

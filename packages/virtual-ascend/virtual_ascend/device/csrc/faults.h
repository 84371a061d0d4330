// Failures that the user requests (VIRTUAL_ASCEND_FAULTS; ../../faults.py defines the grammar).
#pragma once

#include <cstdint>

namespace virtual_ascend::faults {

constexpr int kAnyRank = -1;

// Each fault applies to one rank, or to all ranks with kAnyRank. Counts start at 1.
void die_at_collective(int64_t collective, int rank);
void slow_collectives(double seconds, int rank);
void limit_bandwidth(double gigabytes_per_second, int rank);
void fail_allocation(int64_t allocation, int rank);
void fail_allocations_above(int64_t bytes, int rank);

// Sets this process's rank: $RANK, or what the first process group reports; kAnyRank until then.
void set_rank(int rank);
int rank();

// Called at every collective; may kill the process. Returns the minimum time in seconds that a slow link takes.
double at_collective(const char* name, int64_t bytes);

// Called at every allocation; returns whether it should fail.
bool allocation_fails(int64_t bytes);

}  // namespace virtual_ascend::faults

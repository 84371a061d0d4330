// Failures that the user asks for (VIRTUAL_ASCEND_FAULTS; the grammar is in virtual/faults/grammar.py).
#pragma once

#include <cstdint>

namespace virtual_ascend::faults {

constexpr int kAnyRank = -1;

// Each applies to one rank, or to all with kAnyRank. Counts start at 1.
void die_at_collective(int64_t collective, int rank);
void slow_collectives(double seconds, int rank);
void limit_bandwidth(double gigabytes_per_second, int rank);
void fail_allocation(int64_t allocation, int rank);
void fail_allocations_above(int64_t bytes, int rank);

// This process's rank: $RANK, or what the first process group said; kAnyRank until then.
void set_rank(int rank);
int rank();

// Called at every collective; may end the process. Returns the seconds for which a slow link makes it wait, at least.
double at_collective(const char* name, int64_t bytes);

// Called at every allocation; says whether it is to fail.
bool allocation_fails(int64_t bytes);

}  // namespace virtual_ascend::faults

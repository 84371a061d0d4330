// Device memory: host memory with an account per NPU.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Storage.h>

#include <cstdint>

namespace verl_npu {

constexpr int64_t kUsualMemory = int64_t{64} << 30;  // an Ascend 910B has 64 GiB

struct MemoryStats {
  int64_t allocated = 0, allocated_peak = 0, allocated_total = 0, freed_total = 0;
  int64_t reserved = 0, reserved_peak = 0;
  int64_t active = 0, active_peak = 0;  // live blocks
  int64_t allocations = 0;              // blocks ever made
  int64_t ooms = 0;
};

c10::Allocator* npu_allocator();
c10::DataPtr allocate_on(int device, size_t nbytes);

// Takes over memory that a CPU kernel allocated for a result: same bytes, charged to the NPU while they live.
c10::DataPtr adopt(const c10::Storage& cpu_storage, int device);

// Every NPU's memory; set once, before the first allocation.
void set_total_memory(int64_t bytes);
int64_t total_memory();

MemoryStats memory_stats(int device);
void reset_peak(int device);
void reset_accumulated(int device);
void set_memory_fraction(int device, double fraction);
void empty_cache();

// Host memory that answers yes to is_pinned().
c10::Allocator* pinned_allocator();
bool is_pinned(const void* data);

}  // namespace verl_npu

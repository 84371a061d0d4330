// Device memory: host memory with an account for each NPU.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Storage.h>

#include <array>
#include <cstdint>

namespace virtual_ascend {

constexpr int64_t kUsualMemory = int64_t{64} << 30;  // an Ascend 910B has 64 GiB

struct Stat {
  int64_t current = 0, peak = 0, allocated = 0, freed = 0;
  // Inline: each allocation calls this ten times.
  void add(int64_t amount) {
    current += amount;
    allocated += amount;
    if (current > peak) peak = current;
  }
  void remove(int64_t amount) {
    current -= amount;
    freed += amount;
  }
};

enum Pool : size_t { kAll, kSmall, kLarge, kPools };
using Stats = std::array<Stat, kPools>;

// One NPU's account. Nothing is cached, so reserved memory is the maximum that was allocated since `empty_cache`, and
// every block is its own segment.
struct MemoryStats {
  Stats allocated, requested, reserved;  // bytes; `allocated` is rounded up, `requested` is not
  Stats blocks, segments;
  int64_t ooms = 0;
};

c10::Allocator* npu_allocator();
c10::DataPtr allocate_on(int device, size_t nbytes);

// Only accounting, for memory that another allocator owns.
void charge_block(int device, size_t nbytes);
void discharge_block(int device, size_t nbytes);

// The same for graph memory: it stays reserved while parked, although no tensor uses it.
void charge_memory(int device, size_t nbytes);
void discharge_memory(int device, size_t nbytes);
void park(int device, size_t nbytes, bool held = true);
void unpark(int device, size_t nbytes);

// Takes over memory that a CPU kernel allocated for a result, and charges it to the NPU for its lifetime.
c10::DataPtr adopt(const c10::Storage& cpu_storage, int device);

// Sets the memory of every NPU; called once, before the first allocation.
void set_total_memory(int64_t bytes);
int64_t total_memory();

MemoryStats memory_stats(int device);
void reset_peak(int device);
void reset_accumulated(int device);
void set_memory_fraction(int device, double fraction);
void empty_cache();

// Host memory for which is_pinned() is true.
c10::Allocator* pinned_allocator();
bool is_pinned(const void* data);

// The same for memory of another allocator.
void pin(const void* data, size_t nbytes);
void unpin(const void* data);

}  // namespace virtual_ascend

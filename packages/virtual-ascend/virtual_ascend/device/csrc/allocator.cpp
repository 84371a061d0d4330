#include "allocator.h"

#include "copies.h"
#include "faults.h"
#include "graph.h"
#include "ledger.h"
#include "phantom.h"
#include "pool.h"
#include "runtime.h"

#include <c10/util/Exception.h>
#if VIRTUAL_ASCEND_TORCH_AT_LEAST(2, 9)
#include <c10/core/CachingDeviceAllocator.h>
#endif

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <iomanip>
#include <mutex>
#include <sstream>

namespace virtual_ascend {
namespace {

constexpr size_t kAlignment = 512;  // torch_npu rounds every block up to this
constexpr size_t kSmallBlock = 1 << 20;  // up to this size torch_npu uses its pool of small blocks
constexpr size_t kHeader = 64;      // keeps the data 64-byte aligned for the CPU's vector units

struct Account {
  std::mutex mutex;
  MemoryStats stats;
  double fraction = 1.0;
  std::array<int64_t, kPools> parked{}, parked_blocks{};  // of graphs: used by no tensor, but not available either
};

std::atomic<int64_t> g_total{kUsualMemory};

Account& account(int device) {
  static auto* accounts = new std::array<Account, kMaxDevices>();  // outlives every tensor
  return accounts->at(device);
}

int64_t rounded(size_t nbytes) { return static_cast<int64_t>((nbytes + kAlignment - 1) / kAlignment * kAlignment); }

Pool pool_of(size_t nbytes) { return rounded(nbytes) <= static_cast<int64_t>(kSmallBlock) ? kSmall : kLarge; }

// Formats sizes as torch_npu does.
std::string format_size(int64_t bytes) {
  std::ostringstream out;
  out << std::fixed << std::setprecision(2);
  if (bytes <= 1024) {
    out << bytes << " bytes";
  } else if (bytes <= int64_t{1} << 20) {
    out << static_cast<double>(bytes) / 1024 << " KiB";
  } else if (bytes <= int64_t{1} << 30) {
    out << static_cast<double>(bytes) / (int64_t{1} << 20) << " MiB";
  } else {
    out << static_cast<double>(bytes) / (int64_t{1} << 30) << " GiB";
  }
  return out.str();
}

// Raises torch_npu's message, which programs and people look for. The account is locked.
[[noreturn]] void out_of_memory(int device, int64_t size, Account& account, const char* note) {
  auto& s = account.stats;
  ++s.ooms;
  const int64_t total = g_total;
  std::string allowed;
  if (account.fraction < 1) allowed = format_size(static_cast<int64_t>(account.fraction * static_cast<double>(total))) + " allowed; ";
  TORCH_CHECK_WITH(OutOfMemoryError, false, "NPU out of memory. Tried to allocate ", format_size(size), " (NPU ", device, "; ",
                   format_size(total), " total capacity; ", format_size(s.allocated[kAll].current), " already allocated; ",
                   format_size(s.allocated[kAll].current), " current active; ", format_size(total - s.allocated[kAll].current), " free; ",
                   allowed, format_size(s.reserved[kAll].current),
                   " reserved in total by PyTorch) If reserved memory is >> allocated memory try setting max_split_size_mb to avoid "
                   "fragmentation. (virtual Ascend", note, ")");
}

// `own`: memory of an allocator that the program supplies, which is not cached.
void charge(int device, size_t nbytes, bool own = false) {
  auto& a = account(device);
  std::lock_guard<std::mutex> lock(a.mutex);
  auto& s = a.stats;
  const auto size = rounded(nbytes);
  if (faults::allocation_fails(size)) out_of_memory(device, size, a, ", because of VIRTUAL_ASCEND_FAULTS");
  const int64_t total = g_total;
  const auto allowed = a.fraction < 1 ? static_cast<int64_t>(a.fraction * static_cast<double>(total)) : total;
  if (s.allocated[kAll].current + a.parked[kAll] + size > allowed) out_of_memory(device, size, a, "");
  for (const auto pool : {kAll, pool_of(nbytes)}) {
    s.allocated[pool].add(size);
    s.requested[pool].add(static_cast<int64_t>(nbytes));
    s.blocks[pool].add(1);
    if (own) {
      s.reserved[pool].add(size);
      s.segments[pool].add(1);
      continue;
    }
    const auto held = s.allocated[pool].current + a.parked[pool];
    const auto blocks = s.blocks[pool].current + a.parked_blocks[pool];
    if (held > s.reserved[pool].current) s.reserved[pool].add(held - s.reserved[pool].current);
    if (blocks > s.segments[pool].current) s.segments[pool].add(blocks - s.segments[pool].current);
  }
}

void discharge(int device, size_t nbytes, bool own = false) {
  auto& a = account(device);
  std::lock_guard<std::mutex> lock(a.mutex);
  for (const auto pool : {kAll, pool_of(nbytes)}) {
    if (own) {
      a.stats.reserved[pool].remove(rounded(nbytes));
      a.stats.segments[pool].remove(1);
    }
    a.stats.allocated[pool].remove(rounded(nbytes));
    a.stats.requested[pool].remove(static_cast<int64_t>(nbytes));
    a.stats.blocks[pool].remove(1);
  }
}

struct Block {
  size_t nbytes;
  int device;
};

void free_block(void* data) {
  if (data == nullptr) return;
  char* raw = static_cast<char*>(data) - kHeader;
  const Block block = *reinterpret_cast<Block*>(raw);
  ledger::freed(data);
  graph::freed(data);
  std::free(raw);
  discharge(block.device, block.nbytes);
}

struct Phantom {
  void* data;
  size_t nbytes;
  int device;
};

void free_phantom(void* context) {
  auto* phantom = static_cast<Phantom*>(context);
  ledger::freed(phantom->data);
  discharge(phantom->device, phantom->nbytes);
  delete phantom;
}

struct Adopted {
  c10::Storage storage;
  size_t nbytes;
  int device;
};

void free_adopted(void* context) {
  auto* adopted = static_cast<Adopted*>(context);
  ledger::freed(adopted->storage.data());
  graph::freed(adopted->storage.data());
  discharge(adopted->device, adopted->nbytes);
  delete adopted;
}

#if VIRTUAL_ASCEND_TORCH_AT_LEAST(2, 9)
using AllocatorBase = c10::DeviceAllocator;
#else
using AllocatorBase = c10::Allocator;
#endif

struct NpuAllocator final : AllocatorBase {
#if VIRTUAL_ASCEND_TORCH_AT_LEAST(2, 3)
  c10::DataPtr allocate(size_t nbytes) override { return allocate_on(current_device(), nbytes); }
#else
  c10::DataPtr allocate(size_t nbytes) const override { return allocate_on(current_device(), nbytes); }
#endif
  c10::DeleterFnPtr raw_deleter() const override { return &free_block; }
  void copy_data(void* dest, const void* src, std::size_t count) const override { std::memcpy(dest, src, count); }

#if VIRTUAL_ASCEND_TORCH_AT_LEAST(2, 9)
  bool initialized() override { return virtual_ascend::initialised(); }
  void emptyCache(c10::MempoolId_t = {0, 0}) override { empty_cache(); }
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  void resetAccumulatedStats(c10::DeviceIndex device) override { reset_accumulated(device); }
  void resetPeakStats(c10::DeviceIndex device) override { reset_peak(device); }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) {
    const auto s = memory_stats(device);
    return {static_cast<size_t>(g_total - s.reserved[kAll].current), static_cast<size_t>(g_total)};
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    const auto s = memory_stats(device);
    c10::CachingDeviceAllocator::DeviceStats out;
    const auto show = [](const Stats& from, c10::CachingAllocator::StatArray& to) {
      // The same order as in torch's names: all, small, large.
      for (size_t pool = 0; pool < kPools; ++pool) {
        to.at(pool).current = from[pool].current;
        to.at(pool).peak = from[pool].peak;
        to.at(pool).allocated = from[pool].allocated;
        to.at(pool).freed = from[pool].freed;
      }
    };
    show(s.allocated, out.allocated_bytes);
    show(s.allocated, out.active_bytes);
    show(s.requested, out.requested_bytes);
    show(s.reserved, out.reserved_bytes);
    show(s.blocks, out.allocation);
    show(s.blocks, out.active);
    show(s.segments, out.segment);
    out.num_ooms = s.ooms;
    return out;
  }
#endif
};

NpuAllocator g_allocator;
REGISTER_ALLOCATOR(kNpu, &g_allocator);

std::array<Stats*, 5> all(MemoryStats& stats) {
  return {&stats.allocated, &stats.requested, &stats.reserved, &stats.blocks, &stats.segments};
}

}  // namespace

void charge_block(int device, size_t nbytes) { charge(device, nbytes, true); }
void discharge_block(int device, size_t nbytes) { discharge(device, nbytes, true); }
void charge_memory(int device, size_t nbytes) { charge(device, nbytes); }
void discharge_memory(int device, size_t nbytes) { discharge(device, nbytes); }

void park(int device, size_t nbytes, bool held) {
  if (held) discharge(device, nbytes);
  auto& a = account(device);
  std::lock_guard<std::mutex> lock(a.mutex);
  for (const auto pool : {kAll, pool_of(nbytes)}) {
    a.parked[pool] += rounded(nbytes);
    ++a.parked_blocks[pool];
  }
}

void unpark(int device, size_t nbytes) {
  auto& a = account(device);
  std::lock_guard<std::mutex> lock(a.mutex);
  for (const auto pool : {kAll, pool_of(nbytes)}) {
    a.parked[pool] -= rounded(nbytes);
    --a.parked_blocks[pool];
  }
}

c10::Allocator* npu_allocator() { return &g_allocator; }

c10::DataPtr allocate_on(int device, size_t nbytes) {
  initialise();
  const c10::Device where(kNpu, static_cast<c10::DeviceIndex>(device));
  if (nbytes == 0) return {nullptr, nullptr, &free_block, where};
  TORCH_CHECK_WITH(OutOfMemoryError, nbytes <= (size_t{1} << 60), "NPU out of memory. Tried to allocate more than 1EB memory.");
  if (auto pooled = pool::allocate(device, nbytes)) return std::move(*pooled);
  if (C10_UNLIKELY(graph::under_way()) && !phantom::wanted(nbytes)) {
    if (auto pooled = graph::allocate(device, nbytes)) return std::move(*pooled);
  }
  charge(device, nbytes);
  if (C10_UNLIKELY(phantom::wanted(nbytes))) {
    void* address = phantom::new_address(nbytes);
    ledger::allocated(address, rounded(nbytes));
    return {address, new Phantom{address, nbytes, device}, &free_phantom, where};
  }
  void* raw = nullptr;
  if (posix_memalign(&raw, kHeader, nbytes + kHeader) != 0) {
    discharge(device, nbytes);
    auto& a = account(device);
    std::lock_guard<std::mutex> lock(a.mutex);
    out_of_memory(device, rounded(nbytes), a, ": the host, whose memory it uses, has no more");
  }
  *static_cast<Block*>(raw) = Block{nbytes, device};
  void* data = static_cast<char*>(raw) + kHeader;
  ledger::allocated(data, rounded(nbytes));
  return {data, data, &free_block, where};
}

c10::DataPtr adopt(const c10::Storage& cpu_storage, int device) {
  initialise();
  const auto nbytes = cpu_storage.nbytes();
  if (nbytes == 0) return allocate_on(device, 0);
  charge(device, nbytes);
  void* data = const_cast<void*>(cpu_storage.data());
  ledger::allocated(data, rounded(nbytes));
  return {data, new Adopted{cpu_storage, nbytes, device}, &free_adopted,
          c10::Device(kNpu, static_cast<c10::DeviceIndex>(device))};
}

MemoryStats memory_stats(int device) {
  auto& a = account(device);
  std::lock_guard<std::mutex> lock(a.mutex);
  return a.stats;
}

void reset_peak(int device) {
  auto& a = account(device);
  std::lock_guard<std::mutex> lock(a.mutex);
  for (auto* stats : all(a.stats))
    for (auto& stat : *stats) stat.peak = stat.current;
}

void reset_accumulated(int device) {
  auto& a = account(device);
  std::lock_guard<std::mutex> lock(a.mutex);
  for (auto* stats : all(a.stats))
    for (auto& stat : *stats) stat.allocated = stat.freed = 0;
  a.stats.ooms = 0;
}

void set_total_memory(int64_t bytes) { g_total = bytes; }
int64_t total_memory() { return g_total; }

void set_memory_fraction(int device, double fraction) {
  auto& a = account(device);
  std::lock_guard<std::mutex> lock(a.mutex);
  a.fraction = fraction;
}

void empty_cache() {
  for (int device = 0; device < kMaxDevices; ++device) {
    copies::synchronize_device(device);  // as torch_npu does before it releases memory
    auto& a = account(device);
    std::lock_guard<std::mutex> lock(a.mutex);
    for (const auto pool : {kAll, kSmall, kLarge}) {
      a.stats.reserved[pool].remove(a.stats.reserved[pool].current - a.stats.allocated[pool].current - a.parked[pool]);
      a.stats.segments[pool].remove(a.stats.segments[pool].current - a.stats.blocks[pool].current - a.parked_blocks[pool]);
    }
  }
}

}  // namespace virtual_ascend

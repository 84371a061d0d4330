#include "pool.h"

#include "allocator.h"
#include "copies.h"
#include "graph.h"
#include "phantom.h"
#include "runtime.h"

#include <c10/util/Exception.h>
#include <torch/csrc/python_headers.h>
#include <torch/csrc/utils/pybind.h>

#include <sys/mman.h>

#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

namespace py = pybind11;

namespace virtual_ascend::pool {
namespace {

constexpr size_t kPage = 4096;
constexpr int kPoison = 0xFF;

struct Range {
  size_t nbytes;
  int device;
  bool mapped;
};

struct Ranges {
  std::mutex mutex;
  std::map<const char*, Range> by_start;
};

Ranges& ranges() {
  static auto* it = new Ranges();  // outlives every tensor
  return *it;
}

std::atomic<int> g_unmapped{0};

Range range_at(void* data) {
  std::lock_guard<std::mutex> lock(ranges().mutex);
  const auto found = ranges().by_start.find(static_cast<char*>(data));
  TORCH_CHECK(found != ranges().by_start.end(), "no address range was reserved at ", data);
  return found->second;
}

void set_mapped(void* data, bool mapped) {
  graph::mapping_changed(data, mapped);
  std::lock_guard<std::mutex> lock(ranges().mutex);
  ranges().by_start.at(static_cast<char*>(data)).mapped = mapped;
  g_unmapped += mapped ? -1 : 1;
}

struct Functions {
  Malloc malloc;
  Free free;
};

thread_local std::vector<Functions> t_pools;

struct Pooled {
  void* data;
  size_t nbytes;
  int device;
  Free free;
};

void free_pooled(void* context) {
  auto* pooled = static_cast<Pooled*>(context);
  graph::freed(pooled->data);
  pooled->free(pooled->data, static_cast<ssize_t>(pooled->nbytes), pooled->device, nullptr);
  delete pooled;
}

struct Callbacks {
  py::object malloc, free;
};

Callbacks& callbacks() {
  static auto* it = new Callbacks();  // not destroyed: the interpreter may have ended
  return *it;
}

}  // namespace

void begin(Malloc malloc, Free free) { t_pools.push_back({malloc, free}); }

void end() {
  TORCH_CHECK(!t_pools.empty(), "no memory pool is in use");
  t_pools.pop_back();
}

std::optional<c10::DataPtr> allocate(int device, size_t nbytes) {
  if (t_pools.empty()) return std::nullopt;
  const auto functions = t_pools.back();
  void* data = functions.malloc(static_cast<ssize_t>(nbytes), device, nullptr);
  TORCH_CHECK_WITH(OutOfMemoryError, data != nullptr, "NPU out of memory. The pluggable allocator did not return ", nbytes, " bytes.");
  return c10::DataPtr(data, new Pooled{data, nbytes, device, functions.free}, &free_pooled,
                      c10::Device(kNpu, static_cast<c10::DeviceIndex>(device)));
}

void* reserve(int device, size_t nbytes) {
  const size_t size = (nbytes + kPage - 1) / kPage * kPage;
  void* data = phantom::wanted(size) ? phantom::new_address(size) : mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  TORCH_CHECK_WITH(OutOfMemoryError, data != MAP_FAILED, "NPU out of memory. The host has no address range of ", size, " bytes left.");
  std::lock_guard<std::mutex> lock(ranges().mutex);
  ranges().by_start[static_cast<char*>(data)] = {size, device, false};
  ++g_unmapped;
  return data;
}

void map(void* data) {
  const auto range = range_at(data);
  TORCH_CHECK(!range.mapped, "the memory at ", data, " is already mapped");
  charge_block(range.device, range.nbytes);
  if (!phantom::is(data)) {
    if (mprotect(data, range.nbytes, PROT_READ | PROT_WRITE) != 0) {
      discharge_block(range.device, range.nbytes);
      TORCH_CHECK(false, "the host cannot provide ", range.nbytes, " bytes of memory");
    }
    std::memset(data, kPoison, range.nbytes);
  }
  set_mapped(data, true);
}

void unmap(void* data) {
  const auto range = range_at(data);
  TORCH_CHECK(range.mapped, "the memory at ", data, " is not mapped");
  copies::synchronize_device(range.device);
  if (!phantom::is(data)) {
    madvise(data, range.nbytes, MADV_DONTNEED);
    mprotect(data, range.nbytes, PROT_NONE);
  }
  set_mapped(data, false);
  discharge_block(range.device, range.nbytes);
}

void release(void* data) {
  if (range_at(data).mapped) unmap(data);
  std::lock_guard<std::mutex> lock(ranges().mutex);
  const auto found = ranges().by_start.find(static_cast<char*>(data));
  if (!phantom::is(data)) munmap(data, found->second.nbytes);
  ranges().by_start.erase(found);
  --g_unmapped;
}

void check_mapped(const void* data) {
  if (g_unmapped.load(std::memory_order_relaxed) == 0 || data == nullptr) return;
  const auto* address = static_cast<const char*>(data);
  std::lock_guard<std::mutex> lock(ranges().mutex);
  auto after = ranges().by_start.upper_bound(address);
  if (after == ranges().by_start.begin()) return;
  const auto& [start, range] = *--after;
  TORCH_CHECK(range.mapped || address >= start + range.nbytes, "NPU function error: the memory at ", data, " of NPU ", range.device,
              " is not mapped: what slept in it was not woken up (virtual Ascend)");
}

// The functions that vllm-ascend's own library (camem_allocator.cpp) gives Python.
void offer(py::module_& m) {
  m.def("begin_pool", [](uintptr_t malloc, uintptr_t free) { begin(reinterpret_cast<Malloc>(malloc), reinterpret_cast<Free>(free)); });
  m.def("end_pool", &end);
  m.def("set_pool_callbacks", [](py::object malloc, py::object free) {
    callbacks() = {std::move(malloc), std::move(free)};
  });
  m.def("map_memory", [](uintptr_t data) { map(reinterpret_cast<void*>(data)); });
  m.def("unmap_memory", [](uintptr_t data) { unmap(reinterpret_cast<void*>(data)); });
  m.def("check_mapped", [](uintptr_t data) { check_mapped(reinterpret_cast<void*>(data)); });
}

}  // namespace virtual_ascend::pool

// The names under which vllm-ascend gives torch_npu its pluggable allocator. Python sees each allocation as its device,
// size, address, and handle.
extern "C" __attribute__((visibility("default"))) void* my_malloc(ssize_t size, int device, void*) {
  using namespace virtual_ascend;
  TORCH_CHECK(pool::callbacks().malloc, "init_module was not called");
  void* data = pool::reserve(device, static_cast<size_t>(size));
  try {
    pool::map(data);
    py::gil_scoped_acquire lock;
    pool::callbacks().malloc(py::make_tuple(device, pool::range_at(data).nbytes, reinterpret_cast<uintptr_t>(data), 0));
  } catch (...) {
    pool::release(data);
    throw;
  }
  return data;
}

extern "C" __attribute__((visibility("default"))) void my_free(void* data, ssize_t, int, void*) {
  using namespace virtual_ascend;
  if (Py_IsInitialized() != 0) {
    py::gil_scoped_acquire lock;
    try {
      pool::callbacks().free(reinterpret_cast<uintptr_t>(data));
    } catch (py::error_already_set& error) {
      error.discard_as_unraisable("vllm-ascend's free callback");
    }
  }
  pool::release(data);
}

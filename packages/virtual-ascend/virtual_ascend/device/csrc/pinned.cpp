#include "allocator.h"

#include "runtime.h"

#include <c10/util/Exception.h>

#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>

namespace virtual_ascend {
namespace {

constexpr size_t kVectorBytes = 64;  // the CPU's vector units read blocks of this size

std::mutex g_pinned_mutex;
// The start of each block, and its size.
std::map<const char*, size_t>& pinned_blocks() {
  static auto* blocks = new std::map<const char*, size_t>();
  return *blocks;
}

void free_pinned(void* data) {
  if (data == nullptr) return;
  unpin(data);
  std::free(data);
}

struct PinnedAllocator final : c10::Allocator {
#if VIRTUAL_ASCEND_TORCH_AT_LEAST(2, 3)
  c10::DataPtr allocate(size_t nbytes) override {
#else
  c10::DataPtr allocate(size_t nbytes) const override {
#endif
    void* data = nullptr;
    if (nbytes > 0) {
      TORCH_CHECK(posix_memalign(&data, kVectorBytes, nbytes) == 0, "cannot allocate ", nbytes, " bytes of pinned host memory");
      pin(data, nbytes);
    }
    return {data, data, &free_pinned, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_pinned; }
  void copy_data(void* dest, const void* src, std::size_t count) const override { std::memcpy(dest, src, count); }
};

}  // namespace

c10::Allocator* pinned_allocator() {
  static auto* allocator = new PinnedAllocator();
  return allocator;
}

void pin(const void* data, size_t nbytes) {
  std::lock_guard<std::mutex> lock(g_pinned_mutex);
  pinned_blocks().emplace(static_cast<const char*>(data), nbytes);
}

void unpin(const void* data) {
  std::lock_guard<std::mutex> lock(g_pinned_mutex);
  pinned_blocks().erase(static_cast<const char*>(data));
}

bool is_pinned(const void* data) {
  std::lock_guard<std::mutex> lock(g_pinned_mutex);
  const auto* byte = static_cast<const char*>(data);
  auto block = pinned_blocks().upper_bound(byte);
  return block != pinned_blocks().begin() && byte < std::prev(block)->first + std::prev(block)->second;
}

}  // namespace virtual_ascend

// Copies between host and NPU: immediate, or, if delays are requested, as late as possible.
#include "cann.h"
#include "tickets.h"

#include <cstdint>
#include <cstring>

using namespace virtual_ascend_cann;

namespace {

constexpr int kHostToDevice = 1, kDeviceToHost = 2;  // aclrtMemcpyKind

// Host memory that a thread allows to arrive late, and what must stay alive until then.
struct Allowance {
  const char* host = nullptr;
  size_t size = 0;
  std::shared_ptr<void> kept;
};
thread_local Allowance t_allowed;

// NaN in every floating-point dtype, and an implausible number in the others.
void poison(char* target, size_t size) {
  constexpr uint16_t kNowhere = 0x7fff;
  for (size_t i = 0; i + 2 <= size; i += 2) memcpy(target + i, &kNowhere, 2);
  if (size % 2 != 0) target[size - 1] = static_cast<char>(0xdb);
}

bool may_come_late(const void* host, size_t size) {
  const auto* first = static_cast<const char*>(host);
  return t_allowed.host != nullptr && first >= t_allowed.host && first + size <= t_allowed.host + t_allowed.size;
}

// A stream's copies run in order, so it reads back what it wrote to the host.
void make_those_that_write(void* stream, const void* source, size_t size) {
  const auto* first = static_cast<const char*>(source);
  for (const auto& ticket : waits_of(stream))
    ticket->make([&](const Delayed& copy) { return copy.to_host && copy.target < first + size && first < copy.target + copy.size; });
}

int copy(void* to, size_t room, const void* from, size_t size, int kind, void* stream) {
  if (size > room) return kInvalidParameter;
  virtual_ascend_cann_settle(stream);
  if (kind == kHostToDevice) make_those_that_write(stream, from, size);
  const bool to_host = kind == kDeviceToHost;
  if (size == 0 || (!to_host && kind != kHostToDevice) || !may_come_late(to_host ? to : from, size)) {
    memmove(to, from, size);
    return kSuccess;
  }
  auto* target = static_cast<char*>(to);
  const auto* source = static_cast<const char*>(from);
  // NPU memory is read when the copy is queued: what is computed later follows it on the stream.
  const auto taken = to_host ? std::make_shared<std::vector<char>>(source, source + size) : nullptr;
  poison(target, size);
  Delayed delayed{to_host, target, size, [=, kept = t_allowed.kept] { memcpy(target, taken ? taken->data() : source, size); }};
  add(stream, std::make_shared<Ticket>(device_here(), std::move(delayed)));
  return kSuccess;
}

}  // namespace

extern "C" {

void virtual_ascend_cann_allow_delay(const void* host, size_t size, void* kept, void (*drop)(void*)) {
  t_allowed = {static_cast<const char*>(host), size, std::shared_ptr<void>(kept, drop)};
}
void virtual_ascend_cann_allow_no_delay() { t_allowed = {}; }

int aclrtMemcpy(void* to, size_t room, const void* from, size_t size, int) {
  if (size > room) return kInvalidParameter;
  memmove(to, from, size);
  return kSuccess;
}
int aclrtMemcpyAsync(void* to, size_t room, const void* from, size_t size, int kind, void* stream) {
  return copy(to, room, from, size, kind, stream);
}
int aclrtMemcpyAsyncWithCondition(void* to, size_t room, const void* from, size_t size, int kind, void* stream) {
  return copy(to, room, from, size, kind, stream);
}
int aclrtMemset(void* to, size_t room, int value, size_t size) {
  if (size > room) return kInvalidParameter;
  memset(to, value, size);
  return kSuccess;
}
int aclrtMemsetAsync(void* to, size_t room, int value, size_t size, void* stream) {
  virtual_ascend_cann_settle(stream);
  return aclrtMemset(to, room, value, size);
}
}

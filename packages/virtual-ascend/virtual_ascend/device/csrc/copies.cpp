#include "copies.h"

#include "alias.h"
#include "runtime.h"

#include <ATen/ops/logical_not.h>

#include <atomic>
#include <limits>
#include <list>
#include <mutex>

namespace virtual_ascend::copies {
namespace {

struct Copy {
  StreamKey stream;
  uint64_t number;
  bool to_host;
  at::Tensor source;  // to the host: what the NPU held when the copy was queued; to an NPU: the host's own memory
  at::Tensor target;  // on the host, or a host alias of an NPU tensor
};

struct Queues {
  std::mutex mutex;
  std::list<Copy> waiting;  // in call order
  Clock issued;             // the latest number of each stream
  std::map<StreamKey, Clock> seen;  // how far a stream has waited for others
};

Queues& queues() {
  static Queues* it = new Queues();  // tensors may outlive static destructors
  return *it;
}

std::atomic<bool> g_delayed{false};
std::atomic<size_t> g_waiting{0};

void merge(Clock& into, const Clock& from) {
  for (const auto& [stream, number] : from) into[stream] = std::max(into[stream], number);
}

// Makes the wanted copies and moves them to `done`, which must outlive the lock, because freeing a tensor may take the
// GIL.
template <typename Wanted>
void perform(Queues& q, std::list<Copy>& done, const Wanted& wanted) {
  for (auto it = q.waiting.begin(); it != q.waiting.end();) {
    const auto here = it++;
    if (!wanted(*here)) continue;
    here->target.copy_(here->source);
    done.splice(done.end(), q.waiting, here);
  }
  g_waiting = q.waiting.size();
}

bool covered(const Clock& clock, const Copy& copy) {
  const auto found = clock.find(copy.stream);
  return found != clock.end() && copy.number <= found->second;
}

Clock clock_of(Queues& q, const StreamKey& stream) {
  Clock clock;
  if (const auto seen = q.seen.find(stream); seen != q.seen.end()) clock = seen->second;
  if (const auto issued = q.issued.find(stream); issued != q.issued.end()) clock[stream] = issued->second;
  return clock;
}

// Fills the target with values that are obviously wrong: NaN, the lowest integer, or the inverted bool.
void poison(const at::Tensor& target, const at::Tensor& value) {
  const auto type = target.scalar_type();
  if (type == at::kBool) {
    target.copy_(at::logical_not(value));
  } else if (c10::isFloatingType(type) || c10::isComplexType(type)) {
    target.fill_(std::numeric_limits<double>::quiet_NaN());
  } else if (type == at::kLong) {
    target.fill_(std::numeric_limits<int64_t>::min());
  } else if (type == at::kInt) {
    target.fill_(static_cast<int64_t>(std::numeric_limits<int32_t>::min()));
  } else if (type == at::kShort) {
    target.fill_(static_cast<int64_t>(std::numeric_limits<int16_t>::min()));
  } else if (type == at::kChar) {
    target.fill_(static_cast<int64_t>(std::numeric_limits<int8_t>::min()));
  } else {
    target.fill_(static_cast<int64_t>(0xdb));
  }
}

}  // namespace

void set_delayed(bool delayed) { g_delayed = delayed; }
bool delayed() { return g_delayed; }

void delay(const at::Tensor& source, const at::Tensor& target) {
  const bool to_host = target.device().type() == c10::kCPU;
  const int device = (to_host ? source : target).device().index();
  const StreamKey stream{device, current_stream(device).id()};
  const auto from = cpu_alias(source);
  const auto to = cpu_alias(target);
  auto& q = queues();
  std::list<Copy> done;
  std::lock_guard<std::mutex> lock(q.mutex);
  // A stream's copies run in order, so it reads back what it wrote to the host.
  perform(q, done, [&](const Copy& copy) { return copy.stream == stream && copy.target.storage().data() == from.storage().data(); });
  Copy copy{stream, ++q.issued[stream], to_host, to_host ? from.clone() : from, to};
  poison(copy.target, to_host ? copy.source : from);
  q.waiting.push_back(std::move(copy));
  g_waiting = q.waiting.size();
}

void before_operation(int device) {
  if (g_waiting == 0) return;
  auto& q = queues();
  std::list<Copy> done;
  std::lock_guard<std::mutex> lock(q.mutex);
  const StreamKey stream{device, current_stream(device).id()};
  perform(q, done, [&](const Copy& copy) { return !copy.to_host && copy.stream == stream; });
}

void synchronize(const Clock& clock) {
  if (g_waiting == 0) return;
  auto& q = queues();
  std::list<Copy> done;
  std::lock_guard<std::mutex> lock(q.mutex);
  perform(q, done, [&](const Copy& copy) { return covered(clock, copy); });
}

void synchronize_stream(int device, c10::StreamId stream) {
  if (g_waiting == 0) return;
  synchronize(now(device, stream));
}

void synchronize_current(int device) { synchronize_stream(device, current_stream(device).id()); }

void synchronize_device(int device) {
  if (g_waiting == 0) return;
  auto& q = queues();
  std::list<Copy> done;
  std::lock_guard<std::mutex> lock(q.mutex);
  perform(q, done, [&](const Copy& copy) { return copy.stream.first == device; });
}

Clock now(int device, c10::StreamId stream) {
  if (!g_delayed) return {};
  auto& q = queues();
  std::lock_guard<std::mutex> lock(q.mutex);
  return clock_of(q, {device, stream});
}

void order(const Clock& clock, int device, c10::StreamId stream) {
  if (!g_delayed) return;
  auto& q = queues();
  std::list<Copy> done;
  std::lock_guard<std::mutex> lock(q.mutex);
  merge(q.seen[{device, stream}], clock);
  perform(q, done, [&](const Copy& copy) { return !copy.to_host && covered(clock, copy); });
}

}  // namespace virtual_ascend::copies

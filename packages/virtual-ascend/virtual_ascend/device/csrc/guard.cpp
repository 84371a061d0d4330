// The interface that c10 needs from a device: the current device and stream, and events.
#include "copies.h"
#include "graph.h"
#include "runtime.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <chrono>

namespace virtual_ascend {
namespace {

// In older torch versions these functions are noexcept, so a nonexistent NPU's stream ends the process.
#if VIRTUAL_ASCEND_TORCH_AT_LEAST(2, 8)
#define VIRTUAL_ASCEND_NOEXCEPT
#else
#define VIRTUAL_ASCEND_NOEXCEPT noexcept
#endif

using Time = std::chrono::steady_clock;

struct Event {
  Time::time_point at;
  copies::Clock done;  // the delayed copies that it covers
  graph::Mark captured;
};

// The host may not wait for work that a capture only records.
void refuse_captured(const Event& event, const char* call) {
  if (event.captured.capture != 0 && graph::is_under_way(event.captured)) graph::refuse(graph::Refused::kEvent, call, "the host waits for an event");
}

struct NpuGuard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kNpu; }
  c10::Device getDevice() const override { return {kNpu, static_cast<c10::DeviceIndex>(current_device())}; }
  c10::Device exchangeDevice(c10::Device device) const override {
    auto previous = getDevice();
    setDevice(device);
    return previous;
  }
  void setDevice(c10::Device device) const override {
    if (device.index() >= 0 && device.index() != current_device()) set_device(device.index());
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.index() >= 0) unchecked_set_device(device.index());
  }
  c10::DeviceIndex deviceCount() const noexcept override { return static_cast<c10::DeviceIndex>(device_count()); }

  c10::Stream getStream(c10::Device device) const VIRTUAL_ASCEND_NOEXCEPT override { return current_stream(resolve(device)); }
  c10::Stream getDefaultStream(c10::Device device) const override { return default_stream(resolve(device)); }
  c10::Stream getNewStream(c10::Device device, int) const override {
    TORCH_CHECK(!streams_of_torch_are_refused(), "Backend doesn't support create a new Stream.");
    return new_stream(resolve(device));
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override { return new_stream(resolve(device)); }
  c10::Stream exchangeStream(c10::Stream stream) const VIRTUAL_ASCEND_NOEXCEPT override { return exchange_stream(stream); }
  bool queryStream(const c10::Stream& stream) const override {
    synchronizeStream(stream);
    return true;
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    if (graph::captures(stream))
      graph::refuse(graph::Refused::kSynchronising, "c10_npu::acl::AclrtSynchronizeStreamWithTimeout(stream)", "the host waits for a stream");
    copies::synchronize_stream(stream.device_index(), stream.id());
  }
  void synchronizeDevice(const c10::DeviceIndex device) const { synchronize_npu(device); }
  void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream&) const override {}

  // Work is done when it is recorded, except delayed copies.
  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex, const c10::EventFlag) const override {
    if (*event == nullptr) *event = new Event();
    *static_cast<Event*>(*event) = {Time::now(), copies::now(stream.device_index(), stream.id()), graph::mark(stream)};
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event == nullptr) return;
    copies::order(static_cast<Event*>(event)->done, stream.device_index(), stream.id());
    graph::join(static_cast<Event*>(event)->captured, stream);
  }
  bool queryEvent(void* event) const override {
    synchronizeEvent(event);
    return true;
  }
  void synchronizeEvent(void* event) const override {
    if (event == nullptr) return;
    refuse_captured(*static_cast<Event*>(event), "c10_npu::acl::AclrtSynchronizeEventWithTimeout(event)");
    copies::synchronize(static_cast<Event*>(event)->done);
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override { delete static_cast<Event*>(event); }
  double elapsedTime(void* first, void* second, const c10::DeviceIndex) const override {
    TORCH_CHECK(first != nullptr && second != nullptr, "Both events must be recorded before calculating elapsed time.");
    return std::chrono::duration<double, std::milli>(static_cast<Event*>(second)->at - static_cast<Event*>(first)->at).count();
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, NpuGuard);

}  // namespace
}  // namespace virtual_ascend

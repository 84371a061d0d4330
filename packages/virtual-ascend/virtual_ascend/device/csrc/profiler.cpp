// When operators started and ended, for torch.autograd.profiler. Work is done when its call returns.
#include "copies.h"
#include "runtime.h"

#include <c10/util/ApproximateClock.h>
#include <torch/csrc/profiler/stubs/base.h>

#include <chrono>

namespace virtual_ascend::profiling {
namespace {

using Time = std::chrono::steady_clock::time_point;
using torch::profiler::impl::ProfilerVoidEventStub;

struct NpuProfiler final : torch::profiler::impl::ProfilerStubs {
  bool enabled() const override { return true; }
  void record(c10::DeviceIndex* device, ProfilerVoidEventStub* event, int64_t* cpu_ns) const override {
    if (device != nullptr) *device = static_cast<c10::DeviceIndex>(current_device());
    *event = std::make_shared<Time>(std::chrono::steady_clock::now());
    if (cpu_ns != nullptr) *cpu_ns = c10::getTime();
  }
  float elapsed(const ProfilerVoidEventStub* first, const ProfilerVoidEventStub* second) const override {
    const auto at = [](const ProfilerVoidEventStub* event) { return *static_cast<const Time*>(event->get()); };
    return std::chrono::duration<float, std::micro>(at(second) - at(first)).count();
  }
  void mark(const char*) const override {}  // ignored, like mstx's marks
  void rangePush(const char*) const override {}
  void rangePop() const override {}
  void onEachDevice(std::function<void(int)> op) const override {
    for (int device = 0; device < device_count(); ++device) {
      DeviceScope scope(device);
      op(device);
    }
  }
  void synchronize() const override { copies::synchronize_device(current_device()); }
};

const bool registered = [] {
  torch::profiler::impl::registerPrivateUse1Methods(new NpuProfiler());
  return true;
}();

}  // namespace
}  // namespace virtual_ascend::profiling

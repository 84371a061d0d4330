// The interface that ATen needs from an accelerator.
#include "allocator.h"
#include "generator.h"
#include "ledger.h"
#include "phantom.h"
#include "runtime.h"

#include <ATen/detail/PrivateUse1HooksInterface.h>

#include <algorithm>
#include <cstring>

namespace virtual_ascend {
namespace {

struct NpuHooks final : at::PrivateUse1HooksInterface {
#if VIRTUAL_ASCEND_TORCH_AT_LEAST(2, 6)
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return virtual_ascend::device_count() > 0; }
  void init() const override { initialise(); }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override {
    return at::make_generator<NpuGenerator>(index < 0 ? current_device() : index);
  }
#else
  void initPrivateUse1() const override { initialise(); }
#endif
  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override {
    return default_generator(index < 0 ? current_device() : index);
  }
  at::Device getDeviceFromPtr(void*) const override {
    return {kNpu, static_cast<c10::DeviceIndex>(current_device())};  // it is host memory, so any NPU can claim it
  }
  bool isPinnedPtr(const void* data) const override { return is_pinned(data); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return pinned_allocator(); }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return initialised(); }

  c10::DeviceIndex deviceCount() const override { return static_cast<c10::DeviceIndex>(virtual_ascend::device_count()); }
  c10::DeviceIndex getCurrentDevice() const override { return static_cast<c10::DeviceIndex>(current_device()); }
  void setCurrentDevice(c10::DeviceIndex device) const override { set_device(device); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    const auto previous = getCurrentDevice();
    set_device(device);
    return previous;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return device < 0 ? getCurrentDevice() : exchangeDevice(device);
  }

  // FSDP frees a parameter by resizing its storage to zero, and resizes it again to restore it.
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t nbytes) const override {
    ledger::Gathering gathering;
    auto fresh = allocate_on(storage.device().index(), nbytes);
    const auto kept = std::min(nbytes, storage.nbytes());
    if (kept > 0 && !phantom::is(fresh.get())) {
      if (phantom::is(storage)) {
        std::memset(fresh.get(), 0, nbytes);
      } else {
        std::memcpy(fresh.get(), storage.data(), kept);
      }
    }
    storage.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(fresh));
    storage.unsafeGetStorageImpl()->set_nbytes(nbytes);
  }
};

const bool registered = [] {
  at::RegisterPrivateUse1HooksInterface(new NpuHooks());
  return true;
}();

}  // namespace
}  // namespace virtual_ascend

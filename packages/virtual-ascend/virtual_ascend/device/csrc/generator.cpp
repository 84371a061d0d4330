#include "generator.h"

#include "graph.h"
#include "runtime.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/Utils.h>
#if !VIRTUAL_ASCEND_TORCH_AT_LEAST(2, 6)
#include <ATen/core/GeneratorForPrivateuseone.h>
#endif

#include <cstring>
#include <mutex>
#include <vector>

namespace virtual_ascend {
namespace {

constexpr uint64_t kStep = 4;  // philox counters advance by four; DTensor relies on it

uint64_t splitmix(uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

}  // namespace

NpuGenerator::NpuGenerator(int device, uint64_t seed, uint64_t offset)
    : c10::GeneratorImpl(c10::Device(kNpu, static_cast<c10::DeviceIndex>(device)), c10::DispatchKeySet(kNpuKey)),
      seed_(seed),
      offset_(offset) {}

void NpuGenerator::set_current_seed(uint64_t seed) {
  if (graph::captures(device().index())) {
    TORCH_CHECK(seed == seed_, "NPUGeneratorImpl::set_current_seed can be called during stream capture only if new seed is the same as "
                "the original seed.");
    return;
  }
  seed_ = seed;
  offset_ = 0;
}

uint64_t NpuGenerator::get_offset() const {
  graph::refuse_while_capturing(device().index(), "Cannot call NPUGeneratorImpl::get_offset while in capture mode");
  return offset_;
}

uint64_t NpuGenerator::seed() {
  graph::refuse_while_capturing(device().index(), "Cannot call NPUGeneratorImpl::seed while in capture mode");
  set_current_seed(c10::detail::getNonDeterministicRandom());
  return seed_;
}

void NpuGenerator::set_offset(uint64_t offset) {
  graph::refuse_while_capturing(device().index(), "Cannot call NPUGeneratorImpl::set_offset while in capture mode");
  TORCH_CHECK(offset % kStep == 0, "offset must be a multiple of 4, found ", offset);
  offset_ = offset;
}

void NpuGenerator::set_state(const c10::TensorImpl& state) {
  at::detail::check_rng_state(state);
  constexpr int64_t size = 2 * sizeof(uint64_t);
  TORCH_CHECK(state.numel() == size, "RNG state is wrong size: expected ", size, " bytes (seed and offset); found ", state.numel());
  uint64_t words[2];
  std::memcpy(words, state.data(), size);
  seed_ = words[0];
  set_offset(words[1]);
}

c10::intrusive_ptr<c10::TensorImpl> NpuGenerator::get_state() const {
  // Bypasses the dispatcher, so that the state is real even under a Python mode (FakeTensorMode).
  at::Tensor state = at::detail::empty_cpu({2 * static_cast<int64_t>(sizeof(uint64_t))}, at::TensorOptions().dtype(at::kByte));
  const uint64_t words[2] = {seed_, offset_};
  std::memcpy(state.mutable_data_ptr(), words, sizeof(words));
  return state.getIntrusivePtr();
}

at::Generator NpuGenerator::next() {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto mixed = splitmix(splitmix(seed_) ^ offset_);
  offset_ += kStep;
  return at::make_generator<at::CPUGeneratorImpl>(mixed);
}

const at::Generator& default_generator(int device) {
  static auto* all = [] {
    auto* generators = new std::vector<at::Generator>();
    for (int i = 0; i < kMaxDevices; ++i) generators->push_back(at::make_generator<NpuGenerator>(i));
    return generators;
  }();
  return all->at(device);
}

at::Generator generator_for(const std::optional<at::Generator>& given, int device) {
  const auto& generator = given.has_value() && given->defined() ? *given : default_generator(device);
  TORCH_CHECK(generator.device().type() == kNpu, "Expected a 'npu' device type for generator but found '",
              generator.device().type(), "'");
  auto* own = static_cast<NpuGenerator*>(generator.unsafeGetGeneratorImpl());
  graph::drawing(*own, device);
  return own->next();
}

#if !VIRTUAL_ASCEND_TORCH_AT_LEAST(2, 6)
// torch.Generator("npu"); newer torch versions call the hooks instead.
at::Generator make_generator(c10::DeviceIndex index) {
  return at::make_generator<NpuGenerator>(index < 0 ? current_device() : index);
}
REGISTER_GENERATOR_PRIVATEUSE1(make_generator)
#endif

}  // namespace virtual_ascend

// Random numbers of an NPU. As on a real NPU, the whole state is a seed and an offset (16 bytes), so that DTensor can
// place every shard in one sequence.
#pragma once

#include <ATen/core/Generator.h>

#include <atomic>

namespace virtual_ascend {

class NpuGenerator final : public c10::GeneratorImpl {
 public:
  explicit NpuGenerator(int device, uint64_t seed = c10::default_rng_seed_val, uint64_t offset = 0);

  void set_current_seed(uint64_t seed) override;
  uint64_t current_seed() const override { return seed_; }
  uint64_t seed() override;
  void set_offset(uint64_t offset) override;
  uint64_t get_offset() const override;
  void set_state(const c10::TensorImpl& state) override;
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override;

  // The position in the sequence, also while a capture forbids asking for it.
  uint64_t offset() const { return offset_; }
  void go_to(uint64_t offset) { offset_ = offset; }

  // Returns a CPU generator for one operation, determined by (seed, offset), and advances the offset.
  at::Generator next();

 private:
  NpuGenerator* clone_impl() const override { return new NpuGenerator(device().index(), seed_, offset_); }

  uint64_t seed_;
  uint64_t offset_;
};

const at::Generator& default_generator(int device);

// The CPU generator for an operation on `device`: derived from `given`, or from the device's default generator.
at::Generator generator_for(const std::optional<at::Generator>& given, int device);

}  // namespace virtual_ascend

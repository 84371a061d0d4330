// Random numbers of an NPU: as on the real one, the whole state is a seed and an offset (16 bytes), so that DTensor can
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

  // Where the sequence is, without asking whether that may be known now.
  uint64_t offset() const { return offset_; }
  void go_to(uint64_t offset) { offset_ = offset; }

  // A CPU generator for one operation, fixed by (seed, offset); moves the offset on.
  at::Generator next();

 private:
  NpuGenerator* clone_impl() const override { return new NpuGenerator(device().index(), seed_, offset_); }

  uint64_t seed_;
  uint64_t offset_;
};

const at::Generator& default_generator(int device);

// The CPU generator with which an operation on `device` draws: from `given`, or from the device's own.
at::Generator generator_for(const std::optional<at::Generator>& given, int device);

}  // namespace virtual_ascend

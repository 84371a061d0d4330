#include "formats.h"

#include "alias.h"
#include "allocator.h"
#include "graph.h"
#include "phantom.h"
#include "pool.h"
#include "runtime.h"
#include "tensors.h"

#include <ATen/ops/empty.h>
#include <torch/csrc/python_headers.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace py = pybind11;

namespace virtual_ascend::formats {

std::atomic<int> g_fractal{0};

namespace {

constexpr int64_t kRows = 16;        // in a block
constexpr size_t kBlockBytes = 32;   // in a row of a block; elements of more than two bytes count as two

// Matrices in FRACTAL_NZ, with their ND layout.
struct Fractal {
  std::vector<int64_t> sizes;
  at::ScalarType type;
  size_t itemsize;

  int64_t rows() const { return sizes[sizes.size() - 2]; }
  int64_t columns() const { return sizes.back(); }
  int64_t matrices() const {
    int64_t count = 1;
    for (size_t i = 0; i + 2 < sizes.size(); ++i) count *= sizes[i];
    return count;
  }
  int64_t width() const { return static_cast<int64_t>(kBlockBytes / std::min<size_t>(itemsize, 2)); }
  int64_t blocks_across() const { return (columns() + width() - 1) / width(); }
  int64_t padded_rows() const { return (rows() + kRows - 1) / kRows * kRows; }
  int64_t plain_elements() const { return matrices() * rows() * columns(); }
  int64_t elements() const { return matrices() * blocks_across() * padded_rows() * width(); }

  // Calls `move` for each run of elements with its position in ND, its position here, and its length.
  template <typename Move>
  void each_run(const Move& move) const {
    for (int64_t matrix = 0; matrix < matrices(); ++matrix)
      for (int64_t row = 0; row < rows(); ++row)
        for (int64_t block = 0; block < blocks_across(); ++block) {
          const int64_t column = block * width();
          const int64_t plain = (matrix * rows() + row) * columns() + column;
          const int64_t here = ((matrix * blocks_across() + block) * padded_rows() + row) * width();
          move(plain * static_cast<int64_t>(itemsize), here * static_cast<int64_t>(itemsize),
               std::min(width(), columns() - column) * static_cast<int64_t>(itemsize));
        }
  }
};

struct Known {
  std::mutex mutex;
  std::unordered_map<const void*, Fractal> by_base;
};

Known& known() {
  static auto* it = new Known();  // tensors may outlive static destructors
  return *it;
}

// Not bytes, and not more elements than the memory has.
bool has_elements_of(const at::Tensor& tensor, const Fractal& fractal) {
  if (tensor.scalar_type() != fractal.type) return false;
  int64_t end = tensor.storage_offset() + 1;
  for (int64_t i = 0; i < tensor.dim(); ++i) end += std::max<int64_t>(tensor.size(i) - 1, 0) * tensor.stride(i);
  return end <= fractal.plain_elements();
}

std::optional<Fractal> found(const at::Tensor& tensor) {
  if (!any() || !tensor.defined() || !tensor.has_storage()) return std::nullopt;
  std::lock_guard<std::mutex> lock(known().mutex);
  const auto at = known().by_base.find(tensor.storage().data());
  if (at == known().by_base.end() || !has_elements_of(tensor, at->second)) return std::nullopt;
  return at->second;
}

Fractal fractal_of(const at::Tensor& tensor) {
  const auto at = found(tensor);
  TORCH_CHECK(at.has_value(), "the tensor is not in FRACTAL_NZ");
  return *at;
}

// All of the memory in ND, as a row of bytes on the host.
at::Tensor unpacked(const Fractal& fractal, const char* from) {
  auto out = at::empty({fractal.plain_elements() * static_cast<int64_t>(fractal.itemsize)}, at::kByte);
  auto* to = out.mutable_data_ptr<uint8_t>();
  fractal.each_run([&](int64_t plain, int64_t here, int64_t nbytes) { std::memcpy(to + plain, from + here, nbytes); });
  return out;
}

void pack(const Fractal& fractal, const char* from, char* to) {
  fractal.each_run([&](int64_t plain, int64_t here, int64_t nbytes) { std::memcpy(to + here, from + plain, nbytes); });
}

void remember(const void* base, Fractal fractal) {
  std::lock_guard<std::mutex> lock(known().mutex);
  known().by_base[base] = std::move(fractal);
  g_fractal = static_cast<int>(known().by_base.size());
}

char* memory_of(const at::Tensor& tensor) { return const_cast<char*>(static_cast<const char*>(tensor.storage().data())); }

bool is_whole(const Fractal& fractal, const at::Tensor& tensor) {
  return tensor.storage_offset() == 0 && tensor.is_contiguous() && tensor.sizes() == at::IntArrayRef(fractal.sizes);
}

// In torch_npu's words: a capture does not accept the cast between formats.
void refuse_to_cast_in_graph(int device) {
  TORCH_CHECK(!graph::under_way() || !graph::captures(device),
              "Cannot run aclop operators during NPU graph capture. Current working aclop is Identity. If you need this call to be "
              "captured, please try to set torch.npu.config.allow_internal_format = False. If still fail, the operator needs aclnn "
              "implementation and please file an issue. Current npuStreamCaptureStatus: npuStreamCaptureStatusActive");
}

}  // namespace

bool is_fractal(const at::Tensor& tensor) { return found(tensor).has_value(); }

at::Tensor to_fractal(const at::Tensor& npu) {
  TORCH_CHECK(npu.device().type() == kNpu, "expected an NPU tensor; found one on ", npu.device());
  refuse_to_cast_in_graph(npu.device().index());
  if (npu.dim() < 2 || npu.numel() == 0 || phantom::is(npu)) return npu.clone();
  const Fractal fractal{npu.sizes().vec(), npu.scalar_type(), npu.dtype().itemsize()};
  auto host = cpu_alias(npu).contiguous();
  if (host.storage_offset() != 0) host = host.clone();
  const auto nbytes = static_cast<size_t>(fractal.elements()) * fractal.itemsize;
  DeviceScope scope(npu.device().index());
  auto memory = allocate_on(npu.device().index(), nbytes);
  auto* to = static_cast<char*>(memory.get());
  std::memset(to, 0, nbytes);
  pack(fractal, static_cast<const char*>(host.const_data_ptr()), to);
  c10::Storage storage(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), nbytes, std::move(memory), npu_allocator(), true));
  auto out = over(std::move(storage), kNpuKey, host);
  remember(to, fractal);
  return out;
}

at::Tensor values(const at::Tensor& tensor) {
  const auto fractal = fractal_of(tensor);
  auto bytes = unpacked(fractal, memory_of(tensor));
  return over(c10::Storage(bytes.storage()), c10::DispatchKey::CPU, tensor);
}

void put_back(const at::Tensor& tensor, const at::Tensor& values) {
  const auto fractal = fractal_of(tensor);
  refuse_to_cast_in_graph(tensor.device().index());
  pack(fractal, static_cast<const char*>(values.storage().data()), memory_of(tensor));
}

void copy_into(const at::Tensor& npu, const at::Tensor& source, const at::Tensor& host) {
  pool::check_mapped(npu.storage().data());
  const auto fractal = fractal_of(npu);
  refuse_to_cast_in_graph(npu.device().index());
  if (is_whole(fractal, npu) || source.device().type() == kNpu || npu.dim() < 2) {
    const auto all = values(npu);
    all.copy_(host);
    return put_back(npu, all);
  }
  const Fractal own{npu.sizes().vec(), fractal.type, fractal.itemsize};
  const auto plain = host.to(npu.scalar_type()).expand(npu.sizes()).contiguous();
  std::vector<char> packed(static_cast<size_t>(own.elements()) * own.itemsize, 0);
  pack(own, static_cast<const char*>(plain.const_data_ptr()), packed.data());
  const auto begin = std::min(static_cast<size_t>(npu.storage_offset()) * own.itemsize, npu.storage().nbytes());
  std::memcpy(memory_of(npu) + begin, packed.data(), std::min(packed.size(), npu.storage().nbytes() - begin));
}

at::Tensor as_it_lies(const at::Tensor& alias) {
  const auto count = static_cast<int64_t>(alias.storage().nbytes() / alias.dtype().itemsize());
  auto out = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(alias.storage()), alias.key_set(), alias.dtype());
  out.unsafeGetTensorImpl()->set_sizes_contiguous({count});
  return out;
}

void copied(const at::Tensor& source, const at::Tensor& target) {
  for (const auto& each : {source, target})
    if (each.device().type() != kNpu || each.scalar_type() != at::kByte || each.storage_offset() != 0 || !each.is_contiguous() ||
        each.nbytes() != each.storage().nbytes())
      return;
  std::optional<Fractal> layout;
  {
    std::lock_guard<std::mutex> lock(known().mutex);
    const auto at = known().by_base.find(source.storage().data());
    if (at != known().by_base.end()) layout = at->second;
  }
  if (layout.has_value()) remember(target.storage().data(), std::move(*layout));
}

void forget(const void* base) {
  std::lock_guard<std::mutex> lock(known().mutex);
  known().by_base.erase(base);
  g_fractal = static_cast<int>(known().by_base.size());
}

void moved(const void* from, const void* to) {
  std::lock_guard<std::mutex> lock(known().mutex);
  auto node = known().by_base.extract(from);
  if (node.empty()) return;
  node.key() = to;
  known().by_base.insert(std::move(node));
}

void offer(py::module_& m) {
  m.def("to_fractal", &to_fractal);
  m.def("is_fractal", &is_fractal);
}

}  // namespace virtual_ascend::formats

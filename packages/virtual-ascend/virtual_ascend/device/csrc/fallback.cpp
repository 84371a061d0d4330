// Operators without their own kernel run the CPU kernel on zero-copy aliases of their tensors.
#include "fallback.h"

#include "alias.h"
#include "allocator.h"
#include "copies.h"
#include "dtypes.h"
#include "formats.h"
#include "generator.h"
#include "graph.h"
#include "ledger.h"
#include "phantom.h"
#include "runtime.h"
#include "tensors.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/util/SmallVector.h>
#include <ATen/ExpandUtils.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/nonzero.h>
#include <torch/library.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <unordered_set>

namespace virtual_ascend {
namespace {

// Operators that take host tensors next to device tensors on a real accelerator, too.
bool accepts_host_tensors(const std::string& name) {
  static const std::unordered_set<std::string_view> names = {
      "aten::index",        "aten::index_put",   "aten::index_put_",     "aten::_index_put_impl_",
      "aten::_unsafe_index", "aten::_unsafe_index_put", "aten::_pack_padded_sequence", "aten::_ctc_loss",
      "aten::_ctc_loss_backward"};
  return names.count(name) > 0;
}

// Operators for whose result's shape the host has to wait.
bool waits(const std::string& name) {
  static const std::unordered_set<std::string_view> names = {
      "aten::nonzero", "aten::masked_select", "aten::_unique", "aten::_unique2", "aten::unique_dim", "aten::unique_consecutive",
      "aten::unique_dim_consecutive", "aten::repeat_interleave", "aten::equal", "aten::bincount"};
  return names.count(name) > 0;
}

// The properties of an operator that a call needs.
struct Plan {
  explicit Plan(const c10::OperatorHandle& op)
      : results(op.schema().returns().size()),
        computes(op.hasComputedKernelForDispatchKey(c10::DispatchKey::CPU)),
        accepts_host(accepts_host_tensors(op.schema().name())),
        waited_for(waits(op.schema().name())),
        changes_view(op.hasTag(at::Tag::inplace_view)) {
    for (const auto& argument : op.schema().arguments()) {
      const auto* info = argument.alias_info();
      written.push_back(info != nullptr && info->isWrite());
      if (takes_generator(argument)) generators.push_back(written.size() - 1);
    }
  }

  c10::SmallVector<bool, 16> written;  // for each argument
  c10::SmallVector<size_t, 1> generators;
  size_t results;
  bool computes, accepts_host, waited_for, changes_view;
};

struct Pair {
  at::Tensor npu;
  at::Tensor cpu;
  bool written;
};

// The tensors of one call and the device on which it runs. The kernel receives CPU aliases of them, or only their
// shapes.
class Call {
 public:
  Call(const c10::OperatorHandle& op, const Plan& plan) : op_(op), plan_(plan) {}

  // A call on the shapes of tensors that are on an NPU or on the host.
  Call(const c10::OperatorHandle& op, const Plan& plan, c10::DeviceType on) : op_(op), plan_(plan), on_(on) { shapes_.emplace(on); }

  c10::Device computes_on() const { return shapes_.has_value() ? c10::kMeta : c10::kCPU; }

  bool is_on(c10::Device device) const { return device.type() == on_; }

  int device() const { return device_ < 0 ? current_device() : device_; }

  // Saves the tensors that are written to; the end of the capture restores them.
  void save_written() const {
    for (const auto& pair : pairs_)
      if (pair.written) graph::save(pair.npu);
  }

  // From now on, results are placed in the pool of the captured graph.
  void place_results() { places_ = true; }

  // Whether the call only makes views, which need no work on the NPU.
  bool is_view(const torch::jit::Stack& results) const {
    bool fresh = false;
    for (const auto& value : results)
      visit_tensors(value, [&](const at::Tensor& result) {
        bool known = !result.defined();
        for (const auto& pair : pairs_) known = known || result.storage().is_alias_of(pair.npu.storage());
        fresh = fresh || !known;
      });
    return !fresh && std::none_of(pairs_.begin(), pairs_.end(), [](const Pair& pair) { return pair.written; });
  }

  at::Tensor take(const at::Tensor& tensor, bool written) {
    if (!tensor.defined()) return tensor;
    if (!is_on(tensor.device()) || (on_ != kNpu && tensor.unsafeGetTensorImpl()->is_wrapped_number())) {
      if (tensor.dim() > 0 && host_ == nullptr) host_ = tensor.unsafeGetTensorImpl();
      return shapes_.has_value() && plan_.accepts_host ? tensor.to(c10::kMeta) : tensor;
    }
    // A tensor that is passed twice is also one tensor for the kernel: `x * x`, or an `out` that is also an input.
    for (auto& pair : pairs_) {
      if (!pair.npu.is_same(tensor)) continue;
      pair.written = pair.written || written;
      return pair.cpu;
    }
    use(tensor.device().index());
    pairs_.push_back({tensor, shapes_.has_value() ? shapes_->of(tensor) : cpu_alias(tensor), written});
    return pairs_.back().cpu;
  }

  void use(int index) {
    TORCH_CHECK(device_ < 0 || device_ == index, "Expected all tensors to be on the same device, but found at least two devices, npu:",
                device_, " and npu:", index, "! (", op_.schema().name(), ")");
    device_ = index;
  }

  void check_devices() const {
    TORCH_CHECK(host_ == nullptr || pairs_.empty() || plan_.accepts_host,
                "Expected all tensors to be on the same device, but found at least two devices, npu:", device(), " and cpu! (",
                op_.schema().name(), ")");
  }

  // Some Meta kernels resize an in-place operator's output where the CPU kernel raises.
  void check_in_place() const {
    for (const auto& pair : pairs_)
      TORCH_CHECK(!pair.written || pair.npu.sizes() == pair.cpu.sizes(), "output with shape ", pair.npu.sizes(),
                  " doesn't match the broadcast shape ", pair.cpu.sizes());
  }

  // For a call on shapes only: grows memory, and zeroes real memory that was written from phantoms.
  void write_back_shapes() {
    for (auto& [npu, shape, written] : pairs_) {
      if (!written) continue;
      const auto& storage = npu.storage();
      if (shape.storage().nbytes() > storage.nbytes()) {
        auto fresh = phantom::like(shape, npu.device());
        storage.unsafeGetStorageImpl()->set_data_ptr_noswap(fresh.storage().set_data_ptr(c10::DataPtr()));
        storage.unsafeGetStorageImpl()->set_nbytes(shape.storage().nbytes());
      }
      if (npu.sizes() != shape.sizes() || npu.strides() != shape.strides() || npu.storage_offset() != shape.storage_offset())
        npu.unsafeGetTensorImpl()->set_sizes_and_strides(shape.sizes(), shape.strides(), shape.storage_offset());
      phantom::clear(npu);
    }
  }

  // Whether a result that is no view, or an output argument, is too large to be real.
  bool makes_phantom(const at::Tensor& result) const {
    if (!result.defined()) return false;
    for (const auto& pair : pairs_)
      if (result.storage().is_alias_of(pair.cpu.storage()) && pair.npu.storage().nbytes() >= result.storage().nbytes()) return false;
    return phantom::wanted(result.storage().nbytes(), result.scalar_type());
  }

  // A kernel may have resized its outputs: apply that to the NPU tensor and to the storage that its views share.
  void write_back() {
    for (auto& [npu, cpu, written] : pairs_) {
      if (!written) continue;
      const auto& storage = npu.storage();
      if (C10_UNLIKELY(formats::any()) && formats::is_fractal(npu)) {
        formats::put_back(npu, cpu);
        continue;
      }
      if (cpu.storage().data() != storage.data() || cpu.storage().nbytes() != storage.nbytes()) {
        auto* impl = storage.unsafeGetStorageImpl();
        impl->set_data_ptr_noswap(places_ ? graph::placed(cpu.storage(), npu.device().index()) : adopt(cpu.storage(), npu.device().index()));
        impl->set_nbytes(cpu.storage().nbytes());
      }
      if (npu.sizes() != cpu.sizes() || npu.strides() != cpu.strides() || npu.storage_offset() != cpu.storage_offset())
        npu.unsafeGetTensorImpl()->set_sizes_and_strides(cpu.sizes(), cpu.strides(), cpu.storage_offset());
    }
  }

  at::Tensor give(const at::Tensor& result) const {
    if (!result.defined() || result.device() != computes_on()) return result;
    TORCH_CHECK_NOT_IMPLEMENTED(result.layout() == c10::kStrided, "operator ", op_.schema().operator_name(),
                                " is not implemented by the virtual Ascend: its result has the layout ", result.layout());
    for (const auto& pair : pairs_)
      if (pair.cpu.is_same(result)) return pair.npu;
    for (const auto& pair : pairs_)
      if (result.storage().is_alias_of(pair.cpu.storage()))
        return over(c10::Storage(pair.npu.storage()), phantom::keys_of(pair.npu.storage()), result);
    // A size that was only known after computing may still be a phantom's; then the values are dropped.
    if (C10_UNLIKELY(shapes_.has_value() || phantom::wanted(result.storage().nbytes(), result.scalar_type())))
      return phantom::like(result, on_ == kNpu ? c10::Device(kNpu, static_cast<c10::DeviceIndex>(device())) : c10::Device(on_));
    // Some CPU kernels reduce in memory of their input's size.
    if (C10_UNLIKELY(places_)) return graph::placed(result, device());
    const bool roomy = result.storage().nbytes() > static_cast<size_t>(result.numel()) * result.itemsize() && result.is_contiguous();
    return npu_alias(roomy ? result.clone() : result, device());
  }

 private:
  const c10::OperatorHandle& op_;
  const Plan& plan_;
  c10::SmallVector<Pair, 4> pairs_;
  c10::DeviceType on_ = kNpu;
  std::optional<phantom::Shapes> shapes_;
  int device_ = -1;
  bool places_ = false;
  const c10::TensorImpl* host_ = nullptr;
};

void take(Call& call, c10::IValue& value, bool written) {
  if (value.isTensor()) {
    value = call.take(value.toTensor(), written);
  } else if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(call.take(tensor, written));
    value = std::move(list);
  } else if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const auto& element : value.toOptionalTensorList()) {
      std::optional<at::Tensor> tensor = element;
      if (tensor.has_value()) tensor = call.take(*tensor, written);
      list.push_back(std::move(tensor));
    }
    value = std::move(list);
  } else if (value.isDevice() && call.is_on(value.toDevice())) {
    if (value.toDevice().type() == kNpu) call.use(resolve(value.toDevice()));
    value = call.computes_on();
  }
}

void give(const Call& call, c10::IValue& value) {
  if (value.isTensor()) {
    value = call.give(value.toTensor());
  } else if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(call.give(tensor));
    value = std::move(list);
  }
}

// A mask among indices stands for the positions where it is true, and only its values tell how many those are.
void replace_masks(const std::string& name, c10::IValue& value) {
  if (!value.isOptionalTensorList()) return;
  c10::List<std::optional<at::Tensor>> list;
  for (const auto& element : value.toOptionalTensorList()) {
    std::optional<at::Tensor> index = element;
    if (!index.has_value() || !index->defined() || (index->scalar_type() != at::kBool && index->scalar_type() != at::kByte)) {
      list.push_back(index);
      continue;
    }
    if (phantom::is(*index) && !index->is_cpu()) phantom::refuse("the mask of " + name);
    for (const auto& column : at::nonzero(cpu_alias(*index)).unbind(1)) list.push_back(column);  // on the host: not charged
  }
  value = std::move(list);
}

// A real mask tells how many elements are selected.
void select_masked(torch::jit::Stack* stack) {
  const auto self = (*stack)[stack->size() - 2].toTensor();
  const auto mask = (*stack)[stack->size() - 1].toTensor();
  if (phantom::is(mask) && !mask.is_cpu()) phantom::refuse("the mask of aten::masked_select");
  const auto sizes = at::infer_size(self.sizes(), mask.sizes());
  const auto chosen = cpu_alias(mask).expand(sizes).sum().item<int64_t>();
  torch::jit::drop(*stack, 2);
  stack->push_back(phantom::like(at::empty({chosen}, self.options().device(c10::kMeta)), self.device()));
}

// Gives each row without values different maxima, so that a router spreads tokens evenly over all experts.
void spread(const at::Tensor& self, const at::Tensor& indices, int64_t dim) {
  if (!phantom::is(self) || phantom::is(indices) || indices.dim() == 0 || at::maybe_wrap_dim(dim, indices.dim()) != indices.dim() - 1) return;
  const auto host = cpu_alias(indices);
  host.copy_(at::arange(host.numel(), host.options()).remainder_(self.size(-1)).view(host.sizes()));
}

// Runs an operator only on shapes if one of its tensors is, or one of its results would be, a phantom. Returns false if
// the CPU should compute it, which can read phantoms on the host: they are zeros.
bool run_on_shapes(const c10::OperatorHandle& op, const Plan& plan, torch::jit::Stack* stack, c10::DeviceType on = kNpu) {
  const auto& name = op.schema().name();
  const auto count = plan.written.size();
  const auto first = stack->size() - count;
  bool given = false;
  const bool readable = on != kNpu;
  for (size_t i = 0; i < count; ++i)
    visit_tensors((*stack)[first + i], [&](const at::Tensor& tensor) { given = given || phantom::is(tensor); });
  // In-place outputs do not grow, so only a phantom among the tensors matters.
  const bool in_place = name.back() == '_' && plan.results <= 1;
  if (in_place && !given) return false;
  if (given && name == "aten::masked_select") {
    select_masked(stack);
    return true;
  }
  if (plan.waited_for || !op.hasComputedKernelForDispatchKey(c10::DispatchKey::Meta)) {
    if (given && !readable) phantom::refuse(name);
    return false;
  }
  torch::jit::Stack shapes(stack->begin() + static_cast<std::ptrdiff_t>(first), stack->end());
  Call call(op, plan, on);
  for (size_t i = 0; i < count; ++i) {
    auto& value = shapes[i];
    if (value.isNone()) continue;
    if (value.isGenerator()) {
      value = c10::IValue();
      continue;
    }
    if (plan.accepts_host) replace_masks(name, value);
    take(call, value, plan.written[i]);
  }
  call.check_devices();
  try {
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::Meta), &shapes);
  } catch (const c10::NotImplementedError&) {
    if (given && !readable) phantom::refuse(name);
    return false;
  } catch (const std::exception&) {
    if (given && !readable) throw;
    return false;  // the CPU kernel reports the error
  }
  bool large = given;
  for (const auto& value : shapes) visit_tensors(value, [&](const at::Tensor& tensor) { large = large || call.makes_phantom(tensor); });
  if (!large) return false;
  if (in_place) call.check_in_place();
  dtypes::check(op, stack->data() + first);
  call.write_back_shapes();
  for (auto& value : shapes) give(call, value);
  if (name == "aten::topk") spread((*stack)[first].toTensor(), shapes[1].toTensor(), (*stack)[first + 2].toInt());
  torch::jit::drop(*stack, count);
  for (auto& value : shapes) stack->push_back(std::move(value));
  return true;
}

// Returns whether a graph records the call, and prepares the capture for it.
bool prepare_capture(const c10::OperatorHandle& op, const Plan& plan, Call& call) {
  graph::check_order(call.device());
  call.save_written();
  if (!graph::recording(call.device())) return false;
  if (plan.waited_for)
    graph::refuse_synchronising(call.device(), "c10_npu::acl::AclrtSynchronizeStreamWithTimeout(stream)",
                                op.schema().name() + " waits for the shape of its result");
  call.place_results();
  return true;
}

void compute(const c10::OperatorHandle& op, const Plan& plan, torch::jit::Stack* stack) {
  if (C10_UNLIKELY(phantom::on()) && run_on_shapes(op, plan, stack)) return;
  TORCH_CHECK_NOT_IMPLEMENTED(plan.computes, "operator ", op.schema().operator_name(),
                              " is not implemented by the virtual Ascend: it has no CPU kernel to fall back on");
  const auto count = plan.written.size();
  const auto first = stack->size() - count;
  Call call(op, plan);
  torch::jit::Stack given;  // for a graph
  if (C10_UNLIKELY(graph::under_way())) given.assign(stack->begin() + static_cast<std::ptrdiff_t>(first), stack->end());
  for (size_t i = 0; i < count; ++i) {
    auto& value = (*stack)[first + i];
    if (!value.isNone()) take(call, value, plan.written[i]);
  }
  call.check_devices();
  const bool recording = C10_UNLIKELY(graph::under_way()) && prepare_capture(op, plan, call);
  if (plan.waited_for && copies::delayed()) copies::synchronize_current(call.device());
  for (const auto i : plan.generators) {
    auto& value = (*stack)[first + i];
    value = generator_for(value.isNone() ? std::nullopt : std::optional<at::Generator>(value.toGenerator()), call.device());
  }
  {
    DeviceScope scope(call.device());
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  }
  call.write_back();
  for (size_t i = stack->size() - plan.results; i < stack->size(); ++i) give(call, (*stack)[i]);
  if (C10_LIKELY(!recording)) return;
  const torch::jit::Stack results(stack->end() - static_cast<std::ptrdiff_t>(plan.results), stack->end());
  if (plan.changes_view || call.is_view(results)) return;
  graph::add_kernel(op, given, results, {plan.generators.begin(), plan.generators.end()});
}

// The cost of a call on an NPU: the bytes that the call reads and writes, and the FLOPs of matrix products.
class Cost {
 public:
  Cost(const std::string& name, const torch::jit::Stack& stack, size_t count) : name_(name) {
    const auto first = stack.size() - count;
    for (size_t i = first; i < stack.size(); ++i)
      visit_tensors(stack[i], [&](const at::Tensor& tensor) {
        if (!tensor.defined()) return;
        bytes_ += static_cast<double>(tensor.nbytes());
        if (tensor.device().type() == kNpu) given_.push_back(tensor.storage().unsafeGetStorageImpl());
      });
    const auto at = [&](size_t i) { return stack[first + i].toTensor(); };
    if (name == "aten::mm" || name == "aten::bmm") multiplied(at(0), at(1));
    if (name == "aten::addmm" || name == "aten::baddbmm") multiplied(at(1), at(2));
    if (name == "aten::convolution") each_result_ = 2.0 * static_cast<double>(at(1).numel()) / static_cast<double>(at(1).size(0));
  }

  void tell(const torch::jit::Stack& stack, const Plan& plan) {
    const bool writes = std::find(plan.written.begin(), plan.written.end(), true) != plan.written.end();
    bool is_view = false;
    for (size_t i = stack.size() - plan.results; i < stack.size(); ++i)
      visit_tensors(stack[i], [&](const at::Tensor& tensor) {
        if (!tensor.defined()) return;
        bytes_ += static_cast<double>(tensor.nbytes());
        flops_ += each_result_ * static_cast<double>(tensor.numel());
        for (const auto* storage : given_) is_view = is_view || (!writes && storage == tensor.storage().unsafeGetStorageImpl());
      });
    if (!is_view) ledger::operated(name_, flops_, bytes_);
  }

 private:
  void multiplied(const at::Tensor& left, const at::Tensor& right) {
    flops_ = 2.0 * static_cast<double>(left.numel()) * static_cast<double>(right.size(-1));
  }

  const std::string& name_;
  double flops_ = 0, bytes_ = 0, each_result_ = 0;
  c10::SmallVector<const c10::StorageImpl*, 8> given_;
};

void run(const c10::OperatorHandle& op, const Plan& plan, torch::jit::Stack* stack) {
  if (C10_LIKELY(!ledger::on())) return compute(op, plan, stack);
  Cost cost(op.schema().name(), *stack, plan.written.size());
  compute(op, plan, stack);
  cost.tell(*stack, plan);
}

// Runs an operator that has a phantom on the host among its tensors.
void host_fallback(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  const Plan plan(op);
  bool on_npu = false;
  for (auto value = stack->end() - static_cast<std::ptrdiff_t>(plan.written.size()); value != stack->end(); ++value) {
    on_npu = on_npu || (value->isDevice() && value->toDevice().type() == kNpu);
    visit_tensors(*value, [&](const at::Tensor& tensor) { on_npu = on_npu || (tensor.defined() && tensor.device().type() == kNpu); });
  }
  if (on_npu) return op.redispatchBoxed(c10::DispatchKeySet(kNpuKey), stack);
  if (!run_on_shapes(op, plan, stack, c10::kCPU)) op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
}

void cpu_fallback(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) { run(op, Plan(op), stack); }

// The same for one operator, whose plan is made once.
class Fallback final : public c10::OperatorKernel {
 public:
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
    std::call_once(once_, [&] { plan_.emplace(op); });
    run(op, *plan_, stack);
  }

 private:
  std::once_flag once_;
  std::optional<Plan> plan_;
};

}  // namespace
}  // namespace virtual_ascend

namespace virtual_ascend {

// Operators for which ATen computes shapes separately have a composite form for every device: it allocates the result
// and calls the variant that writes into it, which would fall back. Registering them here sends them directly to the
// CPU, which does the shared work only once.
//
// For phantoms on the host, a composite form would make other temporary tensors than the CPU's kernel.
void register_fallbacks() {
  static auto* library = new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  static auto* host = new torch::Library(torch::Library::IMPL, "aten", phantom::kHostKey, __FILE__, __LINE__);
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (name.getNamespace() != "aten") continue;
    const auto op = c10::Dispatcher::singleton().findOp(name);
    if (!op.has_value() || !op->hasKernelForDispatchKey(c10::DispatchKey::CPU)) continue;
    if (op->hasComputedKernelForDispatchKey(phantom::kHostKey))
      host->impl(toString(name).c_str(), torch::CppFunction::makeFromBoxedFunction<&host_fallback>());
    if (op->hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1) ||
        !op->hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional))
      continue;
    library->impl(toString(name).c_str(), torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Fallback>()));
  }
}

}  // namespace virtual_ascend

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&virtual_ascend::cpu_fallback>());
}

TORCH_LIBRARY_IMPL(_, CustomRNGKeyId, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&virtual_ascend::host_fallback>());
}

// These also have a composite form, which would be preferred: it rounds differently, or has no kernel for this device.
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("native_layer_norm", torch::CppFunction::makeFromBoxedFunction<&virtual_ascend::cpu_fallback>());
  m.impl("conj_physical_", torch::CppFunction::makeFromBoxedFunction<&virtual_ascend::cpu_fallback>());
  m.impl("native_group_norm", torch::CppFunction::makeFromBoxedFunction<&virtual_ascend::cpu_fallback>());
}

#if !VIRTUAL_ASCEND_TORCH_AT_LEAST(2, 9)
// Before torch 2.9 this key has no fallback, and operators without an autograd formula (c10d's) would fail at it.
TORCH_LIBRARY_IMPL(_, AutogradPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }
#endif

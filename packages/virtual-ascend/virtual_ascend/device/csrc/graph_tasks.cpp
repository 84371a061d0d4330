// The entries of a graph's record: operators that run on the host, and copies.
#include "graph.h"

#include "alias.h"
#include "allocator.h"
#include "graph_memory.h"
#include "runtime.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/CPUAllocator.h>

#include <cstring>
#include <unordered_map>

namespace virtual_ascend::graph {
namespace {

// Replaces each tensor in an argument by the result of `change`.
template <typename Change>
void replace_tensors(c10::IValue& value, const Change& change) {
  if (value.isTensor()) {
    value = change(value.toTensor());
  } else if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(change(tensor));
    value = std::move(list);
  } else if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const auto& element : value.toOptionalTensorList()) {
      std::optional<at::Tensor> tensor = element;
      if (tensor.has_value()) tensor = change(*tensor);
      list.push_back(std::move(tensor));
    }
    value = std::move(list);
  }
}

// Copies bytes if both tensors have the same layout, which saves a dispatch.
void put(const at::Tensor& target, const at::Tensor& value) {
  if (target.data_ptr() == value.data_ptr()) return;
  if (target.sizes() == value.sizes() && target.strides() == value.strides() && target.scalar_type() == value.scalar_type() &&
      value.is_non_overlapping_and_dense() && target.is_conj() == value.is_conj() && target.is_neg() == value.is_neg()) {
    std::memmove(target.data_ptr(), value.const_data_ptr(), value.nbytes());
    return;
  }
  TORCH_CHECK(target.sizes() == value.sizes(), "a replay's result has the shape ", value.sizes(), ", but the captured one had ", target.sizes());
  at::AutoDispatchBelowADInplaceOrView below;
  target.copy_(value);
}

using Places = std::unordered_map<const c10::TensorImpl*, size_t>;

struct Kernel {
  c10::OperatorHandle op;
  torch::jit::Stack arguments;
  std::vector<std::pair<size_t, at::Generator>> generators;
  Places places;          // of the tensors among the arguments, for each operand
  Tensors targets;        // of the results in order; undefined for a result that is an argument
  size_t first_target;    // among the operands
  int device;

  void operator()(const Tensors* instead) const {
    auto stack = arguments;
    if (C10_UNLIKELY(instead != nullptr)) {
      for (auto& value : stack)
        replace_tensors(value, [&](const at::Tensor& tensor) {
          const auto known = tensor.defined() ? places.find(tensor.unsafeGetTensorImpl()) : places.end();
          return known == places.end() ? tensor : instead->at(known->second);
        });
    }
    for (const auto& [which, generator] : generators) stack[which] = generator_for(generator, device);
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
    size_t next = 0, target = first_target;
    for (const auto& value : stack)
      visit_tensors(value, [&](const at::Tensor& result) {
        const auto& wanted = targets.at(next++);
        if (!wanted.defined()) return;
        put(instead == nullptr ? wanted : instead->at(target), result);
        ++target;
      });
  }
};

std::string argument_name(const c10::OperatorHandle& op, size_t number) { return op.schema().arguments().at(number).name(); }

}  // namespace

Operand operand(const at::Tensor& npu, Where where, std::string name) {
  const auto key = where == Where::kHost ? c10::DispatchKey::CPU : kNpuKey;
  auto block = watch(npu.storage());
  if (block == nullptr) {
    const auto device = where == Where::kHost ? c10::Device(c10::kCPU) : npu.device();
    auto* allocator = where == Where::kHost ? c10::GetCPUAllocator() : npu_allocator();
    c10::Storage none(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), 0, c10::DataPtr(nullptr, device), allocator, true));
    return {over(std::move(none), key, npu), nullptr, std::move(name)};
  }
  return {over(where == Where::kHost ? block->host : block->npu, key, npu), block, std::move(name)};
}

c10::DataPtr placed(const c10::Storage& host, int device) {
  auto data = allocate_on(device, host.nbytes());
  if (host.nbytes() > 0) std::memcpy(data.get(), host.data(), host.nbytes());
  return data;
}

at::Tensor placed(const at::Tensor& host, int device) {
  if (!host.defined()) return host;
  const bool roomy = host.storage().nbytes() > static_cast<size_t>(host.numel()) * host.itemsize() && host.is_contiguous();
  const auto source = roomy ? host.clone() : host;
  c10::Storage storage(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), source.storage().nbytes(),
                                                             placed(source.storage(), device), npu_allocator(), /*resizable=*/true));
  return over(std::move(storage), kNpuKey, source);
}

Tensors compute(const char* name, const Tensors& given, const std::function<Tensors(const Tensors& host)>& function) {
  Tensors host, out;
  Task task{name, {}, nullptr, nullptr};
  int device = current_device();
  for (const auto& tensor : given) {
    host.push_back(cpu_alias(tensor));
    if (!tensor.defined()) continue;
    device = tensor.device().index();
    task.operands.push_back(operand(tensor, Where::kHost, "an argument"));
  }
  for (const auto& result : function(host)) out.push_back(placed(result, device));
  const auto inputs = task.operands.size();
  for (const auto& tensor : out)
    if (tensor.defined()) task.operands.push_back(operand(tensor, Where::kHost, "the result"));
  Tensors own;
  for (const auto& each : task.operands) own.push_back(each.tensor);
  std::vector<bool> is_given;
  for (const auto& tensor : given) is_given.push_back(tensor.defined());
  task.run = [own, is_given, inputs, function](const Tensors* instead) {
    const auto& all = instead == nullptr ? own : *instead;
    Tensors arguments;
    size_t next = 0;
    for (const bool there : is_given) arguments.push_back(there ? all[next++] : at::Tensor());
    auto target = inputs;
    at::AutoDispatchBelowADInplaceOrView below;
    for (const auto& result : function(arguments))
      if (result.defined()) put(all[target++], result);
  };
  add(std::move(task));
  return out;
}

void add_copy(const at::Tensor& source, const at::Tensor& target) {
  Task task{"copy", {}, nullptr, nullptr};
  Tensors both;
  for (const auto& [tensor, name] : {std::pair(source, "the source"), std::pair(target, "the target")}) {
    // Host memory is kept alive, because copying memory that is gone would crash the process.
    auto side = tensor.device().type() == kNpu ? operand(tensor, Where::kHost, name) : Operand{tensor, nullptr, name};
    both.push_back(side.tensor);
    task.operands.push_back(std::move(side));
  }
  task.run = [both](const Tensors* instead) {
    const auto& all = instead == nullptr ? both : *instead;
    at::AutoDispatchBelowADInplaceOrView below;
    all[1].copy_(all[0]);
  };
  add(std::move(task));
}

void add_kernel(const c10::OperatorHandle& op, const torch::jit::Stack& arguments, const std::vector<c10::IValue>& results,
                const std::vector<size_t>& generators) {
  Task task{op.schema().name(), {}, nullptr, nullptr};
  Kernel kernel{op, arguments, {}, {}, {}, 0, current_device()};
  std::unordered_map<const c10::TensorImpl*, at::Tensor> made;  // a tensor that is passed twice stays one tensor
  std::vector<const c10::StorageImpl*> given;
  for (size_t i = 0; i < kernel.arguments.size(); ++i) {
    auto& value = kernel.arguments[i];
    replace_tensors(value, [&](const at::Tensor& tensor) {
      if (!tensor.defined()) return tensor;
      if (tensor.device().type() != kNpu) return tensor.clone();  // the host's value at the launch
      auto& mine = made[tensor.unsafeGetTensorImpl()];
      if (mine.defined()) return mine;
      kernel.device = tensor.device().index();
      given.push_back(tensor.storage().unsafeGetStorageImpl());
      task.operands.push_back(operand(tensor, Where::kHost, "argument " + argument_name(op, i)));
      mine = task.operands.back().tensor;
      kernel.places[mine.unsafeGetTensorImpl()] = task.operands.size() - 1;
      return mine;
    });
    if (value.isDevice() && value.toDevice().type() == kNpu) {
      if (value.toDevice().has_index()) kernel.device = value.toDevice().index();
      value = c10::Device(c10::kCPU);
    }
  }
  for (const auto which : generators) {
    const auto& value = kernel.arguments[which];
    kernel.generators.emplace_back(which, value.isNone() ? default_generator(kernel.device) : value.toGenerator());
  }
  kernel.first_target = task.operands.size();
  for (const auto& value : results)
    visit_tensors(value, [&](const at::Tensor& result) {
      const bool fresh = result.defined() && result.device().type() == kNpu &&
                         std::find(given.begin(), given.end(), result.storage().unsafeGetStorageImpl()) == given.end();
      if (!fresh) {
        kernel.targets.emplace_back();
        return;
      }
      task.operands.push_back(operand(result, Where::kHost, "the result"));
      kernel.targets.push_back(task.operands.back().tensor);
    });
  task.run = std::move(kernel);
  add(std::move(task));
}

}  // namespace virtual_ascend::graph

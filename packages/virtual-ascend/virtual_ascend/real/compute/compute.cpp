// Computes the real torch_npu's operators on the CPU: torch_npu's own kernel runs first, with its checks, shapes, and
// dtypes, over a CANN that computes nothing. Then the CPU computes the results on aliases of the NPU tensors' memory,
// which is host memory.
#include "../../device/csrc/tensors.h"

#include <ATen/ATen.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>
#include <c10/util/ScopeExit.h>
#include <c10/util/SmallVector.h>
#include <torch/extension.h>
#include <torch/library.h>

#include <dlfcn.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>

namespace virtual_ascend {
namespace {

// In the torch versions of all wheels, the dispatcher has no public way to get an operator's kernel for a key. An
// explicit instantiation may name a member of a class whatever its access.
template <auto Member>
struct Opened {
  friend auto& definition_of(const c10::OperatorHandle& handle) { return *(handle.*Member); }
};
auto& definition_of(const c10::OperatorHandle& handle);
template struct Opened<&c10::OperatorHandle::operatorDef_>;

c10::KernelFunction kernel_of(const c10::OperatorHandle& op) {
  return definition_of(op).op.lookup(c10::DispatchKeySet(kNpuKey));
}

// These move or allocate memory, which the stub CANN does itself, or read it.
bool is_left_alone(const c10::OperatorHandle& op) {
  // Changes how a tensor views its memory, not the content.
  if (op.hasTag(at::Tag::inplace_view)) return true;
  const auto& schema = op.schema();
  static const std::unordered_set<std::string_view> names = {
      "aten::copy_", "aten::_copy_from", "aten::_copy_from_and_resize", "aten::_to_copy", "aten::_local_scalar_dense", "aten::empty",
      "aten::empty_strided", "aten::empty_like", "aten::new_empty", "aten::new_empty_strided", "aten::set_", "aten::resize_",
      "aten::resize_as_", "aten::record_stream", "aten::is_pinned", "aten::pin_memory", "aten::_pin_memory", "aten::lift_fresh",
      "aten::_has_compatible_shallow_copy_type", "aten::is_set_to", "npu::empty_with_format", "npu::unsafe_empty_with_format",
      "npu::get_npu_format", "npu::npu_change_data_ptr", "npu::get_storage_size", "npu::copy_memory_", "npu::empty_with_swapped_memory",
      "npu::one_", "npu::record_stream"};
  if (names.count(schema.name()) > 0) return true;
  // A view: its result shares memory with its argument.
  for (const auto& result : schema.returns())
    if (result.alias_info() != nullptr && !result.alias_info()->isWrite()) return true;
  return false;
}

// Operators whose result's shape depends on values, which torch_npu reads from the device, and operators that compute
// such values: they are computed even inside another operator.
bool reads_values(const std::string& name) {
  static const std::unordered_set<std::string_view> names = {"aten::nonzero", "aten::masked_select", "aten::_unique", "aten::_unique2",
                                                            "aten::unique_dim", "aten::unique_consecutive", "aten::repeat_interleave",
                                                            "aten::sum", "aten::cumsum", "aten::ge", "aten::equal", "aten::bincount", "aten::max",
                                                            "aten::min", "aten::any", "aten::all"};
  return names.count(name) > 0;
}

// The stub CANN's functions, which tell it that somebody computes what it does not.
struct Cann {
  void (*cover)();
  void (*uncover)();
  void (*allow_delay)(const void*, size_t, void*, void (*)(void*));
  void (*allow_no_delay)();
  void (*fail)(const char*);
  int (*rank)();
  int (*is_pending)();
  void* (*last_recorded)();
  void (*settle)(void*);
};
Cann g_cann;

// An operator that should fail: at one of its calls (0: every call), on one rank (-1: all ranks).
struct Failing {
  int64_t call;
  int rank;
};

// The dispatch keys of a new thread: a reference may need autograd, which is excluded below autograd.
c10::impl::LocalDispatchKeySet g_fresh = c10::impl::tls_local_dispatch_key_set();

// Whether a torch_npu kernel is running in this thread: its inner calls need not be computed, because its result will
// be.
thread_local int t_depth = 0;

struct Inside {
  Inside() {
    ++t_depth;
    g_cann.cover();
  }
  ~Inside() {
    g_cann.uncover();
    --t_depth;
  }
};

// A scope in which CANN's operators fail.
struct Refusing {
  explicit Refusing(const std::string& message) { g_cann.fail(message.c_str()); }
  ~Refusing() { g_cann.fail(""); }
};

// CANN's stream for torch's current one. Torch does not tell, but an event that is recorded on it does.
void* current_stream(c10::Device device) {
  static std::mutex mutex;
  static auto* known = new std::map<std::pair<c10::DeviceIndex, c10::StreamId>, void*>();
  const auto* guard = c10::impl::getDeviceGuardImpl(kNpu);
  const auto stream = guard->getStream(device);
  std::lock_guard<std::mutex> lock(mutex);
  const auto [found, is_new] = known->try_emplace({device.index(), stream.id()}, nullptr);
  if (is_new) {
    void* event = nullptr;
    guard->record(&event, stream, device.index(), c10::EventFlag::PYTORCH_DEFAULT);
    found->second = g_cann.last_recorded();
    guard->destroyEvent(event, device.index());
  }
  return found->second;
}

// Returns a CPU tensor over an NPU tensor's memory that keeps that tensor alive.
at::Tensor host_view(const at::Tensor& npu) {
  if (!npu.defined() || npu.device().type() != kNpu) return npu;
  const auto& storage = npu.storage();
  auto* context = c10::Storage(storage).unsafeReleaseStorageImpl();
  c10::DataPtr pointer(const_cast<void*>(storage.data()), context,
                       [](void* held) { c10::intrusive_ptr<c10::StorageImpl>::reclaim(static_cast<c10::StorageImpl*>(held)).reset(); },
                       c10::Device(c10::kCPU));
  auto impl = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), storage.nbytes(), std::move(pointer), nullptr, false);
  return over(c10::Storage(std::move(impl)), c10::DispatchKey::CPU, npu);
}

// Views each position in a tensor's memory once. Torch refuses to copy into an expanded tensor, which contains some
// positions several times.
at::Tensor places(const at::Tensor& view) {
  if (view.numel() == 0 || at::has_internal_overlap(view) != at::MemOverlap::Yes) return view;
  int64_t last = 0;
  for (int64_t i = 0; i < view.dim(); ++i) last += (view.size(i) - 1) * view.stride(i);
  return view.as_strided({last + 1}, {1});
}

at::Tensor on_npu(const at::Tensor& cpu, c10::Device device) {
  auto out = at::empty(cpu.sizes(), cpu.options().device(device));
  host_view(out).copy_(cpu);
  return out;
}

// Older torch_npu versions do not register their generators with torch and have them only in Python.
py::function* g_default_generator = nullptr;

at::Generator default_generator(c10::Device device) {
  py::gil_scoped_acquire gil;
  return (*g_default_generator)(static_cast<int>(device.index())).cast<at::Generator>();
}

// A generator's position at the last draw, how many kernels in a row have drawn there, and whether the last of them
// advanced it.
struct Draw {
  std::optional<std::pair<uint64_t, uint64_t>> from;
  uint64_t again = 0;
  bool moved = false;
};
std::mutex g_draws_mutex;
auto* g_draws = new std::map<const void*, Draw>();

at::Generator chosen(const std::optional<at::Generator>& given, c10::Device device) {
  return given.has_value() && given->defined() ? *given : default_generator(device);
}

std::pair<uint64_t, uint64_t> state_of(const at::Generator& npu) { return {npu.current_seed(), npu.get_offset()}; }

// Returns a CPU generator that depends on the state of the NPU's generator and leaves the CPU's own alone. Call it
// before the kernel, which advances the generator.
at::Generator generator_like(const std::optional<at::Generator>& given, c10::Device device) {
  const at::Generator npu = chosen(given, device);
  if (npu.device().type() != kNpu) return npu;
  const auto state = state_of(npu);
  uint64_t again = 0;
  {
    // A kernel that does not advance the generator would draw the same numbers twice. After one that did, the same
    // position means that the caller has set the seed.
    std::lock_guard<std::mutex> lock(g_draws_mutex);
    auto& draw = (*g_draws)[npu.unsafeGetGeneratorImpl()];
    draw.again = draw.from == state && !draw.moved ? draw.again + 1 : 0;
    draw.from = state;
    again = draw.again;
  }
  uint64_t seed = state.first;
  for (const uint64_t part : {state.second, again}) seed = (seed ^ (part + 0x9e3779b97f4a7c15ull + (seed << 6) + (seed >> 2)));
  auto cpu = at::make_generator<at::CPUGeneratorImpl>(seed);
  return cpu;
}

// Call this after the kernel.
void note_whether_moved(const std::optional<at::Generator>& given, c10::Device device) {
  const at::Generator npu = chosen(given, device);
  if (npu.device().type() != kNpu) return;
  const auto state = state_of(npu);
  std::lock_guard<std::mutex> lock(g_draws_mutex);
  auto& draw = (*g_draws)[npu.unsafeGetGeneratorImpl()];
  draw.moved = draw.from != state;
}

// Makes a CPU kernel without a generator argument use another generator than the CPU's own.
class DefaultGenerator {
 public:
  explicit DefaultGenerator(uint64_t seed) : own_(at::globalContext().defaultGenerator(c10::kCPU)), state_(own_.get_state()) { own_.set_current_seed(seed); }
  ~DefaultGenerator() { own_.set_state(state_); }
  DefaultGenerator(const DefaultGenerator&) = delete;
  DefaultGenerator& operator=(const DefaultGenerator&) = delete;

 private:
  at::Generator own_;
  at::Tensor state_;
};

struct Plan {
  explicit Plan(const c10::OperatorHandle& op) : results(op.schema().returns().size()), values(reads_values(op.schema().name())) {
    for (const auto& argument : op.schema().arguments()) {
      const auto* info = argument.alias_info();
      written.push_back(info != nullptr && info->isWrite());
      if (takes_generator(argument)) generators.push_back(written.size() - 1);
      mutates = mutates || written.back();
    }
    draws = generators.empty() && op.hasTag(at::Tag::nondeterministic_seeded);
    const auto& name = op.schema().name();
    reference = c10::Dispatcher::singleton().findOp({"virtual_ascend_reference::" + name.substr(name.find("::") + 2), op.schema().overload_name()});
    on_cpu = !reference.has_value() && op.hasComputedKernelForDispatchKey(c10::DispatchKey::CPU) && name.compare(0, 6, "aten::") == 0;
    // Its kernel reads the largest value without the dispatcher, and sizes its result accordingly.
    alone = name == "aten::bincount";
  }
  c10::SmallVector<bool, 16> written;
  c10::SmallVector<size_t, 1> generators;
  size_t results;
  bool mutates = false, draws = false, alone = false, values, on_cpu;
  std::optional<c10::OperatorHandle> reference;
};

c10::IValue aliased(const c10::IValue& value) {
  if (value.isTensor()) return host_view(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(host_view(tensor));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const auto& element : value.toOptionalTensorList()) {
      std::optional<at::Tensor> tensor = element;
      if (tensor.has_value()) tensor = host_view(*tensor);
      list.push_back(std::move(tensor));
    }
    return list;
  }
  if (value.isDevice() && value.toDevice().type() == kNpu) return c10::Device(c10::kCPU);
  return value;
}

class Computed final : public c10::OperatorKernel {
 public:
  Computed(c10::KernelFunction real, std::vector<Failing> failing) : real_(std::move(real)), failing_(std::move(failing)) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    std::call_once(once_, [&] { plan_.emplace(op); });
    if (!failing_.empty()) fail(op, keys, stack);
    if (t_depth > 0 && !plan_->values) {
      real_.callBoxed(op, keys, stack);
      return;
    }
    run(op, keys, stack);
  }

 private:
  // Raises torch_npu's own error if this call should fail and asks CANN for an operator.
  void fail(const c10::OperatorHandle& op, c10::DispatchKeySet keys, const torch::jit::Stack* stack) {
    const auto now = ++calls_;
    for (const auto& failing : failing_) {
      if ((failing.call != 0 && failing.call != now) || (failing.rank != -1 && failing.rank != g_cann.rank())) continue;
      const auto message = c10::str(op.schema().name(), ": VIRTUAL_ASCEND_FAULTS made call ", now, " fail (virtual Ascend)");
      torch::jit::Stack copy(*stack);
      {
        Inside inside;
        Refusing refusing(message);
        real_.callBoxed(op, keys, &copy);
      }
      TORCH_CHECK(false, message);
    }
  }

  void run(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    const auto& plan = *plan_;
    if (!plan.on_cpu && !plan.reference.has_value()) {
      real_.callBoxed(op, keys, stack);
      return;
    }
    const size_t count = plan.written.size(), first = stack->size() - count;
    std::vector<c10::IValue> arguments(stack->begin() + static_cast<ptrdiff_t>(first), stack->end());
    c10::Device device(kNpu, c10::impl::getDeviceGuardImpl(kNpu)->getDevice().index());
    for (const auto& argument : arguments)
      visit_tensors(argument, [&](const at::Tensor& t) { if (t.defined() && t.device().type() == kNpu) device = t.device(); });
    // A collective may still be writing to an input, and not every torch_npu kernel tells CANN its stream.
    if (g_cann.is_pending()) g_cann.settle(current_stream(device));
    if (plan.alone) {
      torch::jit::Stack there;
      for (const auto& argument : arguments) there.push_back(aliased(argument));
      compute(op, plan, &there);
      torch::jit::drop(*stack, count);
      for (const auto& result : there) stack->push_back(result.isTensor() ? c10::IValue(on_npu(result.toTensor(), device)) : result);
      return;
    }
    std::vector<std::optional<at::Generator>> given;
    for (const auto i : plan.generators) given.push_back(arguments[i].isNone() ? std::nullopt : std::optional<at::Generator>(arguments[i].toGenerator()));
    const bool draws = plan.draws && plan.on_cpu;
    if (draws) given.emplace_back();
    std::vector<at::Generator> generators;
    for (const auto& generator : given) generators.push_back(generator_like(generator, device));

    // torch_npu copies through temporaries, which nothing has computed.
    std::vector<std::pair<at::Tensor, at::Tensor>> before;
    for (size_t i = 0; plan.mutates && i < count; ++i)
      if (plan.written[i]) visit_tensors(arguments[i], [&](const at::Tensor& t) { if (t.defined()) before.emplace_back(t, places(host_view(t)).clone()); });
    {
      Inside inside;
      real_.callBoxed(op, keys, stack);
    }
    for (const auto& generator : given) note_whether_moved(generator, device);
    for (auto& [npu, saved] : before) {
      const auto now = places(host_view(npu));
      if (now.sizes() == saved.sizes()) now.copy_(saved);
    }

    torch::jit::Stack there;
    there.reserve(count);
    for (size_t i = 0; i < count; ++i) there.push_back(aliased(arguments[i]));
    for (size_t i = 0; i < plan.generators.size(); ++i) there[plan.generators[i]] = generators[i];
    std::optional<DefaultGenerator> drawn;
    if (draws) drawn.emplace(generators.back().current_seed());
    compute(op, plan, &there);
    // torch_npu could not know how much of the caller's tensor should be written.
    for (size_t i = 0; plan.mutates && i < plan.results && !there.empty(); ++i) fit((*stack)[stack->size() - plan.results + i], there[there.size() - plan.results + i], before);
    for (size_t i = 0; i < plan.results && !there.empty(); ++i) put((*stack)[stack->size() - plan.results + i], there[there.size() - plan.results + i], device);
  }

  static void compute(const c10::OperatorHandle& op, const Plan& plan, torch::jit::Stack* there) {
    if (plan.reference.has_value()) {
      c10::impl::ForceDispatchKeyGuard fresh(g_fresh);
      plan.reference->callBoxed(there);
    } else if (op.schema().name() == "aten::div_" && there->size() == 2 && there->front().isTensor() &&
               at::isIntegralType(there->front().toTensor().scalar_type(), false)) {
      // The CPU refuses this. torch_npu's process group divides integers like this, and its tests expect integers.
      auto self = there->front().toTensor();
      const auto& by = there->back();
      self.copy_(by.isTensor() ? at::div(self, by.toTensor(), "trunc") : at::div(self, by.toScalar(), "trunc"));
      *there = {self};
    } else {
      op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), there);
    }
  }

  static void fit(c10::IValue& real, const c10::IValue& computed, const std::vector<std::pair<at::Tensor, at::Tensor>>& given) {
    if (!real.isTensor() || !computed.isTensor() || real.toTensor().sizes() == computed.toTensor().sizes()) return;
    for (const auto& [npu, saved] : given)
      if (npu.is_same(real.toTensor())) npu.resize_(computed.toTensor().sizes());
  }

  // Writes a computed result into torch_npu's result.
  static void put(c10::IValue& real, const c10::IValue& computed, c10::Device device) {
    if (computed.isTensor() && real.isTensor()) {
      real = written(real.toTensor(), computed.toTensor(), device);
    } else if (computed.isTensorList() && real.isTensorList()) {
      const auto theirs = real.toTensorVector(), ours = computed.toTensorVector();
      c10::List<at::Tensor> list;
      for (size_t i = 0; i < theirs.size(); ++i) list.push_back(i < ours.size() ? written(theirs[i], ours[i], device) : theirs[i]);
      real = std::move(list);
    } else if (!computed.isNone() && !real.isNone() && !real.isTensor()) {
      real = computed;  // a number or bool that is read from the device
    }
  }

  static at::Tensor written(const at::Tensor& real, const at::Tensor& computed, c10::Device device) {
    if (!real.defined() || !computed.defined() || real.device().type() != kNpu) return real;
    // A different shape depends on values.
    if (real.sizes() != computed.sizes()) return on_npu(computed.to(real.scalar_type()), device);
    const auto to = host_view(real);
    if (to.data_ptr() == computed.data_ptr()) return real;
    // In an expanded result, several elements share one position in memory.
    if (at::has_internal_overlap(real) == at::MemOverlap::Yes) return on_npu(computed.to(real.scalar_type()), device);
    to.copy_(computed);
    return real;
  }

  c10::KernelFunction real_;
  std::vector<Failing> failing_;
  std::atomic<int64_t> calls_{0};
  std::once_flag once_;
  std::optional<Plan> plan_;
};

// torch_npu's own copy, part of which may arrive late if it is non-blocking.
class Late final : public c10::OperatorKernel {
 public:
  explicit Late(c10::KernelFunction real) : real_(std::move(real)) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    const auto target = (*stack)[stack->size() - 3].toTensor(), source = (*stack)[stack->size() - 2].toTensor();
    const auto& host = target.device().is_cpu() ? target : source;
    if (!stack->back().toBool() || target.device().is_cpu() == source.device().is_cpu()) {
      real_.callBoxed(op, keys, stack);
      return;
    }
    using Kept = std::pair<at::Tensor, at::Tensor>;
    g_cann.allow_delay(host.storage().data(), host.storage().nbytes(), new Kept(target, source), [](void* kept) { delete static_cast<Kept*>(kept); });
    const auto done = c10::make_scope_exit([] { g_cann.allow_no_delay(); });
    real_.callBoxed(op, keys, stack);
  }

 private:
  c10::KernelFunction real_;
};

class Quiet final : public c10::WarningHandler {
  void process(const c10::Warning&) override {}  // a kernel is registered twice on purpose
};

template <typename Function>
void find(void* core, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(core, name));
}

// Registers the CPU behind the operators. `failing` lists the calls that should fail, by operator name in npu::.
// Returns the operators that the CPU computes, and those without a reference.
std::pair<std::vector<std::string>, std::vector<std::string>> install(const std::string& cann, py::function default_generator, bool late,
                                                                      const std::vector<std::tuple<std::string, int64_t, int>>& failing) {
  g_default_generator = new py::function(std::move(default_generator));
  void* core = dlopen(cann.c_str(), RTLD_NOW | RTLD_NOLOAD);
  TORCH_CHECK(core != nullptr, "the stub CANN ", cann, " is not loaded");
  find(core, "virtual_ascend_cann_cover", g_cann.cover);
  find(core, "virtual_ascend_cann_uncover", g_cann.uncover);
  find(core, "virtual_ascend_cann_allow_delay", g_cann.allow_delay);
  find(core, "virtual_ascend_cann_allow_no_delay", g_cann.allow_no_delay);
  find(core, "virtual_ascend_cann_fail", g_cann.fail);
  find(core, "virtual_ascend_cann_rank", g_cann.rank);
  find(core, "virtual_ascend_cann_is_pending", g_cann.is_pending);
  find(core, "virtual_ascend_cann_last_recorded", g_cann.last_recorded);
  find(core, "virtual_ascend_cann_settle", g_cann.settle);
  static auto* libraries = new std::map<std::string, std::unique_ptr<torch::Library>>();
  Quiet quiet;
  c10::WarningUtils::WarningHandlerGuard guard(&quiet);
  std::vector<std::string> computed, unknown;
  for (const auto& name : c10::Dispatcher::singleton().getRegistrationsForDispatchKey(kNpuKey)) {
    const auto op = c10::Dispatcher::singleton().findSchema(name);
    const auto space = name.getNamespace();
    if (!op.has_value() || !space.has_value() || (*space != "aten" && *space != "npu")) continue;
    const bool copy = late && op->schema().name() == "aten::copy_";
    if (is_left_alone(*op) && !copy) continue;
    auto& library = (*libraries)[std::string(*space)];
    if (library == nullptr)
      library = std::make_unique<torch::Library>(torch::Library::IMPL, std::string(*space), kNpuKey, __FILE__, __LINE__);
    if (copy) {
      library->impl(toString(name).c_str(), torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Late>(kernel_of(*op))));
      continue;
    }
    const Plan plan(*op);
    (plan.on_cpu || plan.reference.has_value() ? computed : unknown).push_back(toString(name));
    std::vector<Failing> own;
    for (const auto& [operation, call, rank] : failing)
      if (op->schema().name() == "npu::" + operation) own.push_back({call, rank});
    library->impl(toString(name).c_str(), torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Computed>(kernel_of(*op), std::move(own))));
  }
  return {computed, unknown};
}

}  // namespace
}  // namespace virtual_ascend

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("install", &virtual_ascend::install);
}

#include "dtypes.h"

#include "tensors.h"

#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>

#include <string>
#include <string_view>
#include <unordered_set>

namespace virtual_ascend::dtypes {
namespace {

// Strips "aten::" and the underscores that mark an in-place variant.
std::string_view bare(std::string_view name) {
  if (const auto colons = name.rfind(':'); colons != std::string_view::npos) name.remove_prefix(colons + 1);
  while (!name.empty() && name.back() == '_') name.remove_suffix(1);
  return name;
}

// Operators whose tensors, except indices, must have the same dtype.
bool is_of_one_type(std::string_view name) {
  static const std::unordered_set<std::string_view> names = {
      "mm", "bmm", "addmm", "_addmm_activation", "baddbmm", "addbmm", "mv", "addmv", "addr", "dot", "vdot", "linear",
      "index_add", "index_copy", "index_put", "_index_put_impl", "_unsafe_index_put", "index_reduce", "put",
      "nll_loss_forward", "nll_loss2d_forward", "binary_cross_entropy", "grid_sampler_2d", "grid_sampler_3d", "_embedding_bag"};
  return names.count(name) > 0;
}

// Norms: their weights may have a wider dtype than the input, but not a narrower one.
bool is_norm(std::string_view name) {
  static const std::unordered_set<std::string_view> names = {"native_layer_norm", "native_group_norm", "native_batch_norm",
                                                             "_native_batch_norm_legit"};
  return names.count(name) > 0;
}

bool is_index(const std::string& argument) { return argument == "index" || argument == "indices"; }

// Integer arguments that are positions.
bool is_place(const std::string& argument) { return argument == "target" || argument == "offsets"; }

}  // namespace

void check(const c10::OperatorHandle& op, const c10::IValue* arguments) {
  const auto& schema = op.schema();
  const auto name = bare(schema.name());
  const bool one = is_of_one_type(name), norm = is_norm(name);
  auto first = c10::ScalarType::Undefined;
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const auto& argument = schema.arguments()[i].name();
    const bool index = is_index(argument);
    if (!index && !one && !norm) continue;
    visit_tensors(arguments[i], [&](const at::Tensor& tensor) {
      if (!tensor.defined()) return;
      const auto type = tensor.scalar_type();
      const bool whole = c10::isIntegralType(type, /*includeBool=*/true);
      if (index || (whole && is_place(argument))) {
        TORCH_CHECK(whole, "tensors used as indices must be integers or bools, got ", type, " (", schema.name(), ")");
        return;
      }
      if (first == c10::ScalarType::Undefined) first = type;
      const bool fits = one ? type == first : c10::promoteTypes(type, first) == type;
      TORCH_CHECK(fits, "expected tensors of the same dtype, but got ", first, " and ", type, " (", schema.name(), ")");
    });
  }
}

}  // namespace virtual_ascend::dtypes

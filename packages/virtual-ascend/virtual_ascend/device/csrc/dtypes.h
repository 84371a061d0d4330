// What ATen's Meta kernels do not look at, and the CPU's do: whether the types of an operator's tensors go together.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

namespace virtual_ascend::dtypes {

// Raises for the arguments of an operator if the CPU would: floating-point types that are mixed, an index that is none.
void check(const c10::OperatorHandle& op, const c10::IValue* arguments);

}  // namespace virtual_ascend::dtypes

// Every operator without a kernel of its own runs the CPU kernel on zero-copy aliases of its tensors.
#pragma once

namespace verl_npu {

// Called once, when all kernels of this device are registered: what is left goes to the CPU directly.
void register_fallbacks();

}  // namespace verl_npu

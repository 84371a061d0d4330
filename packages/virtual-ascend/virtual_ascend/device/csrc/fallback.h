// Every operator without a kernel of its own runs the CPU kernel on zero-copy aliases of its tensors.
#pragma once

namespace virtual_ascend {

// Called once, when all kernels of this device are registered: what is left goes to the CPU directly.
void register_fallbacks();

}  // namespace virtual_ascend

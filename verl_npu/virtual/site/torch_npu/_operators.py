"""The operators `torch_npu.npu_*`: ours, as far as the pretended version has them, and the names of those that are not
written."""

from __future__ import annotations

from torch_npu._unimplemented import missing, not_implemented
from verl_npu.virtual import operators
from verl_npu.virtual.device.extension import extension
from verl_npu.virtual.faults import injection
from verl_npu.virtual.operators import schemas
from verl_npu.virtual.settings import Settings

# Those of ATB, which are in a library of their own.
_ATB = (
    "_npu_flash_attention",
    "_npu_paged_attention",
    "_npu_reshape_and_cache",
    "_npu_rotary_embedding",
    "_npu_silu_and_mul",
)

_settings = Settings.read()
_written = injection.wrap(
    {name: getattr(operators, name) for name in operators.__all__}, _settings.faults, extension().rank
)
# As in torch_npu, `torch_npu.npu_x` is `torch.ops.npu.npu_x`: torch itself checks the arguments against the schema.
_registered = schemas.register(_written, _settings.torch_npu_version)
IMPLEMENTED = tuple(_registered)

_missing = missing("torch_npu", {*_registered, "erase_stream"}) | {
    name: not_implemented(f"torch_npu.{name}") for name in _ATB
}
MISSING = tuple(_missing)

globals().update(_registered)
globals().update(_missing)

__all__ = ["IMPLEMENTED", "MISSING"]
__all__ += IMPLEMENTED
__all__ += MISSING

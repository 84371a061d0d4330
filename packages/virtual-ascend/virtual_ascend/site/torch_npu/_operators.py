"""The operators `torch_npu.npu_*` of the emulated version: virtual-ascend's implementations, and the names without an
implementation."""

from __future__ import annotations

import torch
from virtual_ascend import faults, operators
from virtual_ascend.device.extension import extension
from virtual_ascend.operators import atb as _atb_written
from virtual_ascend.operators import attention, schemas
from virtual_ascend.settings import Settings

from torch_npu._unimplemented import missing, not_implemented

_settings = Settings.read()
_npu = {name: getattr(operators, name) for name in operators.__all__}
_written = faults.wrap({**_npu, **operators.OVERLOADS, **_atb_written.OPERATORS}, _settings.faults, extension().rank)
# As in torch_npu, `torch_npu.npu_x` is `torch.ops.npu.npu_x`, so torch checks the arguments against the schema.
_own = {name: _written[name] for name in (*_npu, *operators.OVERLOADS)}
_registered = schemas.register(_own, _settings.torch_npu_version)
_of_atb = {name: _written[name] for name in _atb_written.OPERATORS}
attention.register()
schemas.register_atb(_of_atb, _atb_written.HOST, _settings.torch_npu_version)
ATB: dict[str, dict[str, object]] = {
    place: {
        name: getattr(torch.ops.atb, name) if name in _of_atb else not_implemented(f"{place}.{name}")
        for name in names
        if "." not in name
    }
    for place, names in schemas.atb_of_version(_settings.torch_npu_version).items()
}
_offered = {**_registered, **ATB.get("torch_npu", {})}
_missing = missing("torch_npu", {*_offered, "erase_stream"})
IMPLEMENTED = tuple(_offered)
MISSING = tuple(_missing)

globals().update(_offered)
globals().update(_missing)

__all__ = ["IMPLEMENTED", "MISSING"]
__all__ += IMPLEMENTED
__all__ += MISSING

"""Programs that tests run with several versions of torch_npu."""

from __future__ import annotations

import zipfile
from pathlib import Path

from .interpreter import import_path

# transformers 4.53.3 checks these versions on import, and the installed ones are newer.
OLDER = {"tokenizers": "0.21.4", "huggingface_hub": "0.34.0"}
ACTOR = """
import verl
from verl.workers.actor import dp_actor
import torch, transformers, verl_npu
print(transformers.__version__, torch.npu.device_count(), verl_npu.status()["features"]["attention"]["state"])
print(dp_actor.rearrange(torch.arange(6).view(1, 2, 3), "b s ... -> (b s) ...").tolist())
"""


def path_with(site: Path, transformers: Path, verl: Path) -> str:
    """Return a PYTHONPATH with an older transformers, unpacked into `site`, and an older verl."""
    with zipfile.ZipFile(transformers) as wheel:
        wheel.extractall(site)
    for name, older in OLDER.items():
        metadata = site / f"{name}-{older}.dist-info" / "METADATA"
        metadata.parent.mkdir()
        metadata.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {older}\n")
    return import_path(site, verl)


EXPERTS = """
import json, torch, torch_npu
from verl_npu.features.fused_ops.grouped import grouped_linear
torch.manual_seed(0)
def experts(dtype, transposed, stacked, ends=(2, 2, 7)):
    x = torch.randn(7, 4, dtype=dtype).npu().requires_grad_()
    shape = (5, 4) if transposed else (4, 5)
    parts = [torch.randn(*shape, dtype=dtype).npu() for _ in ends]
    weights = [w.requires_grad_() for w in ([torch.stack(parts)] if stacked else parts)]
    out = grouped_linear(x, torch.tensor(ends).npu(), weights, transposed=transposed)
    out.square().sum().backward()
    found = [out, x.grad, *(torch.stack([w.grad for w in weights]) if not stacked else weights[0].grad)]
    twin = x.detach().requires_grad_()
    twins = [w.detach().requires_grad_() for w in parts]
    bounds = [0, *ends]
    rows = [twin[a:b] @ (w.t() if transposed else w) for a, b, w in zip(bounds, ends, twins)]
    torch.cat(rows).square().sum().backward()
    true = [torch.cat(rows), twin.grad, *(w.grad for w in twins)]
    return all(torch.allclose(f, t, rtol=2e-2, atol=1e-3) for f, t in zip(found, true, strict=True))
out = [experts(d, t, s) for d in (torch.float32, torch.bfloat16) for t in (True, False) for s in (True, False)]
x, w, ends, refused = torch.ones(4, 7).npu(), torch.ones(7, 5).npu(), torch.tensor([2, 7]).npu(), None
try: torch_npu.npu_grouped_matmul([x], [w], group_list=ends, split_item=3, group_type=2)
except RuntimeError as error: refused = str(error)
print(json.dumps([out, refused]))
"""

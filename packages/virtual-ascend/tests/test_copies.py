"""VIRTUAL_ASCEND_COPIES=delayed: a copy that is read before somebody waits for it is wrong, and right afterwards."""

from __future__ import annotations

import json
from importlib import metadata
from typing import Any

import pytest
from virtual_ascend.errors import SettingError
from virtual_ascend.settings import Settings
from virtual_ascend.testing.fixtures import Run

PROGRAM = """
import json, torch
out = {}
x = torch.arange(4.0, device="npu")
def read(host): return host.tolist() == [0, 1, 2, 3]
def start(): return x.to("cpu", non_blocking=True)

out["early"] = read(start())
for name, wait in {
    "synchronize": lambda: torch.npu.synchronize(),
    "stream": lambda: torch.npu.current_stream().synchronize(),
    "stream query": lambda: torch.npu.current_stream().query(),
    "item": lambda: x[0].item(),
    "blocking copy": lambda: x.cpu(),
    "blocking copy to the device": lambda: torch.ones(2).npu(),
    "nonzero": lambda: x.nonzero(),
    "equal": lambda: torch.equal(x, x),
    "empty_cache": lambda: torch.npu.empty_cache(),
    "generic": lambda: torch.accelerator.synchronize() if hasattr(torch, "accelerator") else torch.npu.synchronize(),
}.items():
    host = start(); wait(); out[name] = read(host)

host = start(); event = torch.npu.Event(); event.record(); event.synchronize(); out["event"] = read(host)
event = torch.npu.Event(); event.record(); host = start(); event.synchronize()
out["event before the copy"] = read(host)
host = start(); torch.npu.synchronize(1); out["another device"] = read(host)
side = torch.npu.Stream()
host = start(); side.synchronize(); out["another stream"] = read(host)
host = start(); side.wait_stream(torch.npu.current_stream()); out["stream waits, host does not"] = read(host)
side.synchronize(); out["through the stream that waited"] = read(host)

y = x.clone(); host = y.to("cpu", non_blocking=True); y.fill_(9); torch.npu.synchronize()
out["overwritten later"] = read(host)
out["operation of the device"] = (x + 1).to("npu:0").cpu().tolist() == [1, 2, 3, 4]

for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.int8, torch.uint8, torch.bool, torch.complex64):
    value = torch.tensor([1, 0], device="npu").to(dtype)
    host = value.to("cpu", non_blocking=True); wrong = not torch.equal(host, value.cpu().clone())
    early = value.to("cpu", non_blocking=True).clone(); torch.npu.synchronize()
    out["poison " + str(dtype)] = not torch.equal(early, value.cpu())

pinned = torch.ones(3).pin_memory()
d = pinned.to("npu", non_blocking=True); e = d + 1; out["host to device, same stream"] = e.tolist() == [2, 2, 2]
d = pinned.to("npu", non_blocking=True); pinned.fill_(5)
out["source changed before the copy"] = d.tolist() == [1, 1, 1]
pinned.fill_(1)
d = pinned.to("npu", non_blocking=True); many = [torch.empty_like(d), torch.empty_like(d, dtype=torch.int64)]
torch._foreach_copy_(many, [d, d]); out["host to device to device"] = all(m.tolist() == [1, 1, 1] for m in many)
with torch.npu.stream(side): d = pinned.to("npu", non_blocking=True)
out["host to device, other stream, no wait"] = (d + 1).tolist() == [2, 2, 2]
with torch.npu.stream(side): d = pinned.to("npu", non_blocking=True)
torch.npu.current_stream().wait_stream(side)
out["host to device, other stream, waited"] = (d + 1).tolist() == [2, 2, 2]
with torch.npu.stream(side): d = pinned.to("npu", non_blocking=True); event = torch.npu.Event(); event.record()
event.wait(); out["host to device, other stream, event"] = (d + 1).tolist() == [2, 2, 2]

hosts = [torch.zeros(4), torch.zeros(4)]
torch._foreach_copy_(hosts, [x, x], non_blocking=True); out["foreach early"] = read(hosts[1])
torch.npu.synchronize(); out["foreach"] = all(read(h) for h in hosts)
back = start().to("npu", non_blocking=True); out["to the host and back"] = read(back)
h = start(); back = h.to("npu"); out["to the host and back, blocking"] = read(back)
print(json.dumps(out))
"""

WRONG = {
    "early",
    "event before the copy",
    "another device",
    "another stream",
    "stream waits, host does not",
    "source changed before the copy",
    "host to device, other stream, no wait",
    "foreach early",
}


@pytest.fixture(scope="module")
def delayed(python: Run) -> dict[str, bool]:
    return outcome(python, "delayed")


def outcome(python: Run, copies: str) -> dict[str, bool]:
    result = python(PROGRAM, VIRTUAL_ASCEND_COPIES=copies)
    assert result.returncode == 0, result.stderr
    out: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return out


def test_only_what_was_not_waited_for_is_wrong(delayed: dict[str, bool]) -> None:
    right = {name for name, good in delayed.items() if good and not name.startswith("poison ")}
    assert {name for name in delayed if not name.startswith("poison ")} - right == WRONG


def test_poison_differs_from_the_value_in_every_dtype(delayed: dict[str, bool]) -> None:
    poisons = {name: differs for name, differs in delayed.items() if name.startswith("poison ")}
    assert len(poisons) == 7
    assert all(poisons.values()), poisons


def test_without_the_mode_every_copy_is_there_at_once(python: Run) -> None:
    out = outcome(python, "immediate")
    wrong = {name for name, good in out.items() if not good and not name.startswith("poison ")}
    assert wrong == set()


# tensordict does this: `to("cpu")` starts every copy without blocking and waits for all of them at the end. Before
# 0.10 it did not know that an NPU needs the wait.
TENSORDICT = """
import json, torch
class Batch(dict):
    def to(self, device, wait):
        out = Batch({name: value.to(device, non_blocking=True) for name, value in self.items()})
        if wait: torch.npu.synchronize()
        return out
batch = Batch(tokens=torch.arange(6, device="npu").view(2, 3), scores=torch.ones(2, device="npu"))
host = batch.to("cpu", wait=WAIT)
print(json.dumps([host["tokens"].tolist(), host["scores"].tolist()]))
"""


@pytest.mark.parametrize("wait", [False, True])
def test_the_known_bug_of_tensordict_is_caught(python: Run, wait: bool) -> None:
    result = python(f"WAIT = {wait}\n" + TENSORDICT, VIRTUAL_ASCEND_COPIES="delayed")
    assert result.returncode == 0, result.stderr
    right = json.loads(result.stdout.splitlines()[-1]) == [[[0, 1, 2], [3, 4, 5]], [1, 1]]
    assert right == wait


@pytest.mark.nightly("packages/virtual-ascend/virtual_ascend/device")
def test_tensordict_itself_waits_or_is_caught(python: Run) -> None:
    from packaging.version import Version

    pytest.importorskip("tensordict")
    waits = Version(metadata.version("tensordict")) >= Version("0.10")
    program = """
        import json, torch, tensordict
        batch = tensordict.TensorDict({"a": torch.arange(4.0, device="npu")}, batch_size=[4])
        host = batch.to("cpu", non_blocking=True)
        early = host["a"].tolist()
        torch.npu.synchronize()
        print(json.dumps([early == [0, 1, 2, 3], host["a"].tolist(), batch.to("cpu")["a"].tolist()]))
    """
    result = python(program, VIRTUAL_ASCEND_COPIES="delayed")
    assert result.returncode == 0, result.stderr
    early, later, waited = json.loads(result.stdout.splitlines()[-1])
    assert not early
    assert later == [0, 1, 2, 3]
    assert (waited == [0, 1, 2, 3]) is waits


def test_another_word_is_refused_with_what_was_expected() -> None:
    with pytest.raises(SettingError) as error:
        Settings.read({"VIRTUAL_ASCEND": "1", "VIRTUAL_ASCEND_COPIES": "late"})
    assert str(error.value) == (
        "VIRTUAL_ASCEND_COPIES='late': expected immediate or delayed; found 'late'; correct the value, or unset the "
        "variable"
    )

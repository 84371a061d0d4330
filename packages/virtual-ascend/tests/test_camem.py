"""The allocator of vllm-ascend's sleep mode: memory that goes and comes back at its address."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from virtual_ascend.testing.fixtures import Run

pytest.importorskip("torch")

# The package alone: the virtual Ascend replaces its compiled library.
PACKAGE = "import sys, types; sys.modules['vllm_ascend'] = types.ModuleType('vllm_ascend', ''); "
PACKAGE += "sys.modules['vllm_ascend'].__path__ = []"
PROGRAM = f"""
{PACKAGE}
import json, torch, torch_npu
import vllm_ascend.vllm_ascend_C as library
from torch_npu.npu import memory
kept, said = {{}}, {{}}
library.init_module(lambda handle: kept.__setitem__(handle[2], handle), lambda data: kept.pop(data))
pool = memory.MemPool(memory.NPUPluggableAllocator(None, "my_malloc", "my_free")._allocator)
with memory.use_mem_pool(pool):
    x = torch.ones(1024, 1024, device="npu")
    inner = memory.MemPool()
    with memory.use_mem_pool(inner):
        z = torch.ones(1, device="npu")
y = torch.ones(4, device="npu")
said["pooled"] = len(kept)
(handle,) = [h for h in kept.values() if h[1] >= 4 << 20]
def used(): return torch.npu.memory_allocated()
def free():
    torch.npu.empty_cache()
    return torch.npu.mem_get_info()[0]
def error(call):
    try: call()
    except RuntimeError as found: return str(found)
said["awake"], said["free awake"] = used(), free()
library.python_unmap_and_release(*handle)
said["asleep"], said["free asleep"] = used(), free()
said["others"] = y.sum().item()
said["errors"] = [error(call) for call in (
    lambda: x.sum().item(), lambda: x.copy_(torch.zeros(1024, 1024)), lambda: x.cpu(), lambda: y.copy_(x[0, :4]),
    lambda: torch._foreach_copy_([x], [torch.zeros_like(y).expand(1, 4).repeat(1024, 256)]))]
import acl.rt
host = torch.zeros(4)
ends = host.data_ptr(), x.data_ptr()
said["copies"] = [acl.rt.memcpy(to, 16, of, 16, way) for to, of, way in ((*ends, 2), (*ends[::-1], 1))]
said["twice asleep"] = error(lambda: library.python_unmap_and_release(*handle))
library.python_create_and_map(*handle)
said["woken"], said["free woken"], said["poisoned"] = used(), free(), bool(x.isnan().all())
said["twice awake"] = error(lambda: library.python_create_and_map(*handle))
x.fill_(2); said["written"] = x.sum().item()
library.python_unmap_and_release(*handle)
del x, z
said["freed"], said["left"] = used(), len(kept)
print(json.dumps(said))
"""


@pytest.fixture(scope="module", params=["0", "1"], ids=["values", "phantoms"])
def said(python: Run, request: pytest.FixtureRequest) -> dict[str, Any]:
    """Return the program's results, with values, and with phantoms from 1 MiB on, of which `x` is one."""
    done = python(PROGRAM, VIRTUAL_ASCEND_PHANTOM=request.param)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    found["values"] = request.param == "0"
    return found


def test_only_what_is_made_within_the_pool_is_of_the_pool(said) -> None:
    # A pool without an allocator of its own leaves the one around it in use.
    assert (said["pooled"], said["left"]) == (2, 0)


def test_memory_is_given_back_while_it_sleeps_and_taken_again(said) -> None:
    assert said["awake"] - said["asleep"] == 4 << 20
    assert said["woken"] == said["awake"]
    assert said["freed"] == 512


def test_others_can_have_it_while_it_sleeps(said) -> None:
    assert said["free asleep"] - said["free awake"] == 4 << 20
    assert said["free woken"] == said["free awake"]


def test_what_sleeps_cannot_be_used_and_the_rest_can(said) -> None:
    assert all("is not mapped: what slept in it was not woken up" in (error or "") for error in said["errors"]), said
    assert said["others"] == 4


def test_what_sleeps_cannot_be_copied_by_its_address_either(said) -> None:
    assert said["copies"] == [500000, 500000]


def test_memory_that_wakes_up_has_no_content_until_it_is_written(said) -> None:
    assert said["poisoned"] is said["values"]
    assert said["written"] == (2 << 20 if said["values"] else 0)


def test_memory_neither_goes_nor_comes_twice(said) -> None:
    assert "is not mapped" in said["twice asleep"]
    assert "is already mapped" in said["twice awake"]


def test_vllm_ascends_own_operators_are_not_there(python: Run) -> None:
    done = python(f"{PACKAGE}; import vllm_ascend.meta_registration")
    assert "ImportError: vllm-ascend's own operators are not implemented" in done.stderr


def test_a_layer_knows_that_before_dynamo_traces_it(python: Run, tmp_path: Path) -> None:
    """Dynamo refuses an import that fails, and vllm-ascend tries it at the first call of a layer."""
    folder = tmp_path / "vllm_ascend"
    (folder / "ops").mkdir(parents=True)
    (folder / "__init__.py").touch()
    (folder / "ops" / "__init__.py").touch()
    (folder / "ops" / "layernorm.py").write_text("from vllm_ascend.utils import enable_custom_op\n")
    (folder / "utils.py").write_text(
        "known = None\n"
        "def enable_custom_op():\n"
        "    global known\n"
        "    if known is None:\n"
        "        try:\n"
        "            import vllm_ascend.meta_registration\n"
        "            known = True\n"
        "        except ImportError:\n"
        "            known = False\n"
        "    return known\n"
    )
    done = python(
        f"""
        import sys, torch
        sys.path.insert(0, {str(tmp_path)!r})
        from vllm_ascend.ops import layernorm
        norm = torch.compile(lambda x: x + layernorm.enable_custom_op(), backend="eager", fullgraph=True)
        print(norm(torch.ones(1, device="npu")).item())
        """
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "1.0\n"


def test_a_pool_whose_library_was_not_told_whom_to_tell_is_an_error(python: Run) -> None:
    done = python("""
        import torch, torch_npu
        from torch_npu.npu import memory
        pool = memory.MemPool(memory.NPUPluggableAllocator(None, "my_malloc", "my_free")._allocator)
        try:
            with memory.use_mem_pool(pool): torch.ones(1, device="npu")
        except RuntimeError as error: print(error)
        print(torch.ones(2, device="npu").sum().item())
    """)
    assert "init_module was not called" in done.stdout
    assert done.stdout.splitlines()[-1] == "2.0"

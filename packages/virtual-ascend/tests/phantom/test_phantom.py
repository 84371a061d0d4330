"""Phantom memory: which tensors are phantoms, the values that they read as, and the operations that they refuse."""

# ruff: noqa: E501 - the lines of programs in strings

from __future__ import annotations

import json
from typing import Any

import pytest
from virtual_ascend.testing import results, start_ranks
from virtual_ascend.testing.fixtures import Run

# 1 MiB is the limit; `x` has 4.
PROGRAM = """
import json, resource, torch, torch_npu
from virtual_ascend import description
from virtual_ascend.device.extension import extension
is_phantom = extension().is_phantom
N = 1024
x = torch.randn(N, N, device="npu")
small = torch.arange(N, device="npu")
def raised(call):
    try: return str(call())
    except Exception as error: return f"{type(error).__name__}: {error}"
out = {"said": description(), "phantom": is_phantom(x), "view": is_phantom(x[:2, :2]), "small": is_phantom(small)}
out["values"] = [x[3, 4].item(), x.mean().item(), x.sum(-1)[:2].tolist(), x.cpu().abs().max().item()]
out["real"] = [(small + 1)[:3].tolist(), x.new_ones(3).tolist()]
out["results"] = {
    "of phantoms": is_phantom(x @ x), "small": is_phantom(x.sum(-1)), "of real tensors": is_phantom(torch.ones(N, 1, device="npu") * torch.ones(N, device="npu")),
    "whole numbers": is_phantom(x.argsort(-1)), "convolution": is_phantom(torch.nn.Conv1d(4, 4, 1, device="npu")(torch.ones(4, 1 << 17, device="npu"))),
    "gradient": is_phantom(torch.autograd.grad(torch.nn.functional.embedding(small, e := torch.ones(N, N, device="npu", requires_grad=True)).sum(), e)[0]),
}
out["rows"] = [list(x[small].shape), list(x[small % 3 == 0].shape)]
out["chosen"] = [torch.topk(x, 2).indices[:3].tolist(), list(x.masked_select(small % 4 == 0).shape)]
out["written"] = torch.ones(2, device="npu").copy_(x[0, :2]).tolist()
out["refused"] = {name: raised(call) for name, call in {"nonzero": x.nonzero, "unique": lambda: torch.unique(x), "mask": lambda: torch.ones(2 * N, N, 64, dtype=torch.bool, device="npu").nonzero(), "equal": lambda: torch.equal(x, x)}.items()}
def wrong(device):
    x, small, half = torch.ones(N, N, device=device), torch.arange(N, device=device), torch.ones(N, N, dtype=torch.bfloat16, device=device)
    y, three = torch.ones(N, device=device), torch.ones(3, device=device)
    return {name: raised(call) for name, call in {
        "add_": lambda: x.add_(three), "into less": lambda: y.mul_(x), "compared": lambda: x[:, :1].gt_(x), "copy_": lambda: x.copy_(three), "copied into less": lambda: y.copy_(x),
        "foreach": lambda: torch._foreach_add_([y, x], [y, three]), "foreach copy": lambda: torch._foreach_copy_([x], [three]),
        "addmv_": lambda: y.addmv_(x, three), "mv": lambda: torch.mv(x, three), "out": lambda: torch.add(x, three, out=x),
        "cast": lambda: small.add_(x[0]),
        "histc": lambda: x.histc(0), "mm": lambda: x @ half, "linear": lambda: torch.nn.functional.linear(x, half),
        "norm": lambda: torch.nn.functional.layer_norm(x, (N,), half[0]), "index": lambda: x.index_select(0, small.float()),
        "index_put_": lambda: x.index_put_((small,), half), "index_add_": lambda: x.index_add_(0, small, half),
        "convolution": lambda: torch.nn.functional.conv1d(x[None], half[:, :, None]),
    }.items()}
packed = torch.arange(4 << 17).view(torch.uint8)
out["packed"] = [packed.npu().view(torch.int64)[-2:].tolist(), is_phantom(torch.empty_like(packed, device="npu"))]
out["wrong"] = [wrong("cpu"), wrong("npu")]
w = x.clone(); out["in place"] = [w.add_(1).mul_(small) is w, w.lerp_(x, 0.5) is w, torch.add(x, 1, out=w) is w, is_phantom(w)]
out["shapes"] = raised(lambda: x @ torch.ones(3, 3, device="npu"))
out["devices"] = raised(lambda: x + torch.ones(N))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
y = torch.empty(16 << 30, dtype=torch.int8, device="npu"); y.add_(1); z = y + y
out["charged"] = torch.npu.memory_allocated() >= (32 << 30)
out["host"] = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
out["too much"] = raised(lambda: y.float()).partition("(")[0].strip()
del y, z
held = torch.npu.memory_allocated(); x.untyped_storage().resize_(0)
out["freed"] = held - torch.npu.memory_allocated()
x.untyped_storage().resize_(4 << 20); out["back"] = is_phantom(x)
print(json.dumps(out))
"""


@pytest.fixture(scope="module")
def seen(python: Run) -> dict[str, Any]:
    done = python(PROGRAM, VIRTUAL_ASCEND_PHANTOM="1")
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_the_process_says_that_it_has_phantoms(seen: dict[str, Any]) -> None:
    assert seen["said"] == "virtual NPUs, PHANTOM: no values from 1 MiB on"


def test_what_is_large_and_its_views_are_phantoms(seen: dict[str, Any]) -> None:
    assert (seen["phantom"], seen["view"], seen["small"]) == (True, True, False)


def test_a_phantom_reads_as_zeros(seen: dict[str, Any]) -> None:
    assert seen["values"] == [0, 0, [0, 0], 0]
    assert seen["written"] == [0, 0]


def test_the_greatest_of_rows_are_spread_over_their_places(seen: dict[str, Any]) -> None:
    assert seen["chosen"][0] == [[0, 1], [2, 3], [4, 5]]


def test_a_real_mask_tells_how_many_it_selects(seen: dict[str, Any]) -> None:
    assert seen["chosen"][1] == [1024 * 256]


def test_what_is_small_has_values(seen: dict[str, Any]) -> None:
    assert seen["real"] == [[1, 2, 3], [1, 1, 1]]


def test_a_batch_that_comes_from_the_host_in_one_piece_has_values(seen: dict[str, Any]) -> None:
    assert seen["packed"] == [[(4 << 17) - 2, (4 << 17) - 1], True]


def test_large_results_are_phantoms_whatever_they_are_made_of(seen: dict[str, Any]) -> None:
    assert seen["results"] == {
        "of phantoms": True,
        "small": False,
        "of real tensors": True,
        "whole numbers": False,
        "convolution": True,
        "gradient": True,
    }


def test_real_indices_choose_rows_of_a_phantom(seen: dict[str, Any]) -> None:
    assert seen["rows"] == [[1024, 1024], [342, 1024]]


@pytest.mark.parametrize("operator", ["nonzero", "unique", "mask", "equal"])
def test_what_needs_values_is_refused(seen: dict[str, Any], operator: str) -> None:
    told = seen["refused"][operator]
    assert told.startswith("NotImplementedError: aten::")
    assert "needs the values of a phantom tensor" in told


def test_wrong_shapes_and_devices_are_errors_as_ever(seen: dict[str, Any]) -> None:
    assert seen["shapes"].startswith("RuntimeError: ")
    assert "found at least two devices, npu:0 and cpu" in seen["devices"]


IN_PLACE = (
    "add_",
    "into less",
    "compared",
    "copy_",
    "copied into less",
    "foreach",
    "foreach copy",
    "addmv_",
    "mv",
    "out",
    "cast",
    "histc",
)


@pytest.mark.parametrize("call", IN_PLACE)
def test_what_does_not_fit_what_it_is_written_into_is_an_error(seen: dict[str, Any], call: str) -> None:
    on_host, on_phantoms = (each[call] for each in seen["wrong"])
    assert on_host.startswith("RuntimeError: ")
    assert on_phantoms.startswith("RuntimeError: ")


@pytest.mark.parametrize("call", ["mm", "linear", "norm", "index", "index_put_", "index_add_", "convolution"])
def test_types_that_do_not_go_together_are_refused(seen: dict[str, Any], call: str) -> None:
    on_host, on_phantoms = (each[call] for each in seen["wrong"])
    assert on_host.startswith("RuntimeError: ")
    assert on_phantoms.startswith("RuntimeError: ")


def test_what_is_written_in_place_is_the_tensor_that_was_given(seen: dict[str, Any]) -> None:
    assert seen["in place"] == [True] * 4


def test_memory_is_charged_and_not_taken(seen: dict[str, Any]) -> None:
    assert seen["charged"]
    assert seen["host"] < 200
    assert seen["too much"] == "OutOfMemoryError: NPU out of memory. Tried to allocate 64.00 GiB"


def test_a_storage_that_is_freed_and_brought_back_is_charged_again(seen: dict[str, Any]) -> None:
    assert (seen["freed"], seen["back"]) == (4 << 20, True)


RANKS = """
import datetime, json, os, torch, torch.distributed as dist
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.npu.set_device(rank)
dist.init_process_group("hccl", init_method=os.environ["INIT"], rank=rank, world_size=size, timeout=datetime.timedelta(seconds=60))
# On rank 0 the message is a part of a phantom, on rank 1 it is real.
x = (torch.ones(1 << 20, device="npu") if rank == 0 else torch.ones(4, device="npu"))[:4]
dist.all_reduce(x)
parts = [torch.zeros(2, device="npu") for _ in range(size)]
dist.all_gather(parts, torch.full((2,), rank + 1.0, device="npu"))
# What rank 0 sends to itself is large, all else is not.
counts = [1 << 20, 3] if rank == 0 else [3, 3]
got = torch.empty(sum(counts), device="npu")
dist.all_to_all_single(got, torch.full((sum(counts),), rank + 1.0, device="npu"), counts, counts)
large = torch.ones(1 << 20, device="npu")
dist.broadcast(large, 0)
if rank == 0: dist.send(large, 1)
else: dist.recv(large, 0)
print(json.dumps([x.tolist(), [part.tolist() for part in parts], got[-3:].tolist() if rank else 0, large.sum().item()]))
os._exit(0)
"""


def test_ranks_decide_alike_whose_tensors_lie_differently(tmp_path: Any) -> None:
    first, second = results(start_ranks(RANKS, tmp_path, VIRTUAL_ASCEND_PHANTOM="1"))
    assert first == [[0, 0, 0, 0], [[1, 1], [2, 2]], 0, 0]
    assert second == [[1, 1, 1, 1], [[1, 1], [2, 2]], [2, 2, 2], 0]


SENDING = """
import json, torch, torch.multiprocessing as mp
def receive(queue, answers):
    large, part, small = queue.get(timeout=100), queue.get(timeout=100), queue.get(timeout=100)
    from virtual_ascend.device.extension import extension
    answers.put([extension().is_phantom(large), list(part.shape), large.untyped_storage().data_ptr() == part.untyped_storage().data_ptr(), small.tolist()])
    answers.close(); answers.join_thread()
if __name__ == "__main__":
    context = mp.get_context("spawn")
    queue, answers = context.Queue(), context.Queue()
    child = context.Process(target=receive, args=(queue, answers)); child.start()
    large, small = torch.ones(1024, 1024, device="npu"), torch.ones(3, device="npu")
    queue.put(large); queue.put(large[2:5]); queue.put(small)
    print(json.dumps(answers.get(timeout=100))); child.join()
"""


def test_another_process_is_given_a_phantom_of_the_size(python: Run, tmp_path: Any) -> None:
    program = tmp_path / "program.py"
    program.write_text(SENDING)
    done = python(f"import runpy; runpy.run_path({str(program)!r}, run_name='__main__')", VIRTUAL_ASCEND_PHANTOM="1")
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == [True, [3, 1024], True, [1, 1, 1]]


LOADING = """
import json, os, resource, sys, torch, transformers
from transformers import AutoModelForCausalLM, Qwen3Config
folder = sys.argv[1] if len(sys.argv) > 1 else os.environ["FOLDER"]
Qwen3Config(hidden_size=4096, intermediate_size=12288, num_hidden_layers=8, num_attention_heads=32, num_key_value_heads=8, head_dim=128,
            vocab_size=32000, tie_word_embeddings=False, architectures=["Qwen3ForCausalLM"]).save_pretrained(folder)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
model = AutoModelForCausalLM.from_pretrained(folder, torch_dtype=torch.float32)
norm = model.model.norm.weight[:2].tolist()
model = model.npu()
print(json.dumps({"bytes": sum(p.nbytes for p in model.parameters()), "charged": torch.npu.memory_allocated(), "norm": norm,
                  "dtype": str(model.dtype), "host": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024}))
"""


def test_weights_are_neither_read_nor_made_on_the_host(python: Run, tmp_path: Any) -> None:
    done = python(LOADING, VIRTUAL_ASCEND_PHANTOM="1", FOLDER=str(tmp_path))
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["bytes"] > 6 << 30
    assert found["charged"] >= found["bytes"]
    assert found["host"] < 1500
    assert (found["norm"], found["dtype"]) == ([1, 1], "torch.float32")


def test_without_the_setting_there_are_none(python: Run) -> None:
    done = python("""
        import torch
        from virtual_ascend import description
        from virtual_ascend.device.extension import extension
        print(description(), extension().is_phantom(torch.ones(1 << 20, device="npu")), torch.ones(1 << 20, device="npu").sum().item())
    """)
    assert done.stdout.split("\n")[0] == "virtual NPUs False 1048576.0", done.stderr[-2000:]


@pytest.mark.parametrize("value", ["-1", "much", "nan"])
def test_another_size_is_refused(value: str) -> None:
    from virtual_ascend.errors import SettingError
    from virtual_ascend.settings import Settings

    with pytest.raises(SettingError, match=r"VIRTUAL_ASCEND_PHANTOM=.*: expected a number of MiB"):
        Settings.read({"VIRTUAL_ASCEND": "1", "VIRTUAL_ASCEND_PHANTOM": value})

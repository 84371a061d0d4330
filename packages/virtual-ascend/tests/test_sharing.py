"""Tensors of NPUs in other processes: sent through queues and by handle, loaded by workers, saved and loaded."""

# ruff: noqa: E501 - the lines of programs in strings

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from virtual_ascend.testing.fixtures import Run

PROGRAM = """
import json, pickle, sys, torch
import torch.multiprocessing as mp
from torch.multiprocessing.reductions import reduce_tensor

def receive(queue, answers, payload):
    whole, part = queue.get(timeout=100), queue.get(timeout=100)
    rebuild, arguments = pickle.loads(payload)
    arguments = list(arguments); arguments[6] = 1  # the receiver's own NPU
    with torch.device("npu"):  # as an engine has it that loads weights
        handed = rebuild(*arguments)
    whole.add_(10)
    one = whole.untyped_storage().data_ptr() == part.untyped_storage().data_ptr()
    try: rebuild(*(arguments[:6] + [7] + arguments[7:])); error = ""
    except RuntimeError as raised: error = str(raised)
    answers.put([str(whole.device), part.tolist(), str(handed.device), handed.tolist(), one, error,
                 type(queue.get(timeout=100)).__name__])
    answers.close(); answers.join_thread()

if __name__ == "__main__":
    context = mp.get_context("spawn")
    base = torch.arange(4.0, device="npu").view(2, 2)
    allocated = torch.npu.memory_allocated()
    with torch.device("npu"):
        payload = pickle.dumps(reduce_tensor(base))
    queue, answers = context.Queue(), context.Queue()
    child = context.Process(target=receive, args=(queue, answers, payload)); child.start()
    parameter = torch.nn.Parameter(torch.ones(1, device="npu"))
    queue.put(base); queue.put(base[1]); queue.put(parameter)
    out = {"received": answers.get(timeout=100)}
    child.join()
    out["sender"] = base.tolist()
    out["allocated"] = torch.npu.memory_allocated() - allocated - 512
    out["empty"] = [str(reduce_tensor(torch.empty(0, 3, device="npu"))[0].__name__)]
    try: reduce_tensor(parameter * 2); out["graph"] = ""
    except RuntimeError as error: out["graph"] = str(error)
    print(json.dumps(out))
"""


@pytest.fixture(scope="module")
def shared(python: Run, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    # A started process imports the program from a file.
    program = tmp_path_factory.mktemp("sharing") / "program.py"
    program.write_text(PROGRAM)
    done = python(f"import runpy; runpy.run_path({str(program)!r}, run_name='__main__')", timeout=200)
    if done.returncode != 0 and "Can't get attribute" not in done.stderr:
        pytest.fail(done.stderr[-3000:])
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def test_a_tensor_and_its_view_arrive_on_one_memory(shared: dict[str, Any]) -> None:
    device, part, *_ = shared["received"]
    assert (device, part) == ("npu:0", [12, 13])
    assert shared["received"][4]


def test_what_the_receiver_writes_the_sender_reads(shared: dict[str, Any]) -> None:
    assert shared["sender"] == [[10, 11], [12, 13]]


def test_a_handle_opens_on_the_receivers_own_npu(shared: dict[str, Any]) -> None:
    assert shared["received"][2:4] == ["npu:1", [[10, 11], [12, 13]]]


def test_an_npu_that_the_receiver_lacks_is_named(shared: dict[str, Any]) -> None:
    assert "invalid device ordinal 7" in shared["received"][5]


def test_a_parameter_arrives_as_one(shared: dict[str, Any]) -> None:
    assert shared["received"][6] == "Parameter"


def test_sharing_takes_no_memory_of_the_npu(shared: dict[str, Any]) -> None:
    assert shared["allocated"] == 0


def test_a_tensor_within_a_graph_is_refused(shared: dict[str, Any]) -> None:
    assert "Cowardly refusing to serialize non-leaf tensor" in shared["graph"]


@pytest.mark.nightly("packages/virtual-ascend/virtual_ascend/device")
def test_workers_load_batches_into_pinned_memory(python: Run) -> None:
    program = """
        import json, torch
        data = torch.utils.data.TensorDataset(torch.arange(20.0))
        where = {} if hasattr(torch, "accelerator") else {"pin_memory_device": "npu"}  # torch before 2.6 asks for CUDA
        loader = torch.utils.data.DataLoader(data, batch_size=4, num_workers=2, pin_memory=True, **where)
        print(json.dumps([[batch.is_pinned(), batch.to("npu", non_blocking=True).sum().item()] for (batch,) in loader]))
    """
    done = python(program)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [[True, total] for total in (6, 22, 38, 54, 70)]


@pytest.mark.parametrize(
    ("where", "device"),
    [(None, "npu:1"), ("cpu", "cpu"), ("npu:0", "npu:0"), ({"npu:1": "npu:0"}, "npu:0"), ("npu", "npu:0")],
)
def test_a_saved_tensor_is_loaded_where_it_is_asked_for(npu: Any, tmp_path: Path, where: Any, device: str) -> None:
    npu.save({"x": npu.arange(3.0, device="npu:1")}, tmp_path / "saved")
    loaded = npu.load(tmp_path / "saved", map_location=where, weights_only=True)["x"]
    assert str(loaded.device) == device
    assert loaded.tolist() == [0, 1, 2]


def test_compiled_functions_run_eagerly_which_is_said_once(python: Run) -> None:
    # Inductor has no code generator for the device, and programs leave torch.compile on.
    program = """
        import json, torch
        x = torch.ones(2, device="npu")
        def add(x): return x + 1
        @torch.compile(dynamic=True)
        def decorated(x): return x + 1
        module = torch.nn.Linear(2, 2, device="npu")
        module.compile()
        same = [torch.compile(add) is add, torch.compile(add, backend="inductor", fullgraph=True) is add]
        print(json.dumps([same, decorated(x).tolist(), list(module(x).shape)]))
    """
    done = python(program, timeout=200)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [[True, True], [2, 2], [2]]
    assert done.stderr.count("torch.compile runs eagerly") == 1


@pytest.mark.nightly("packages/virtual-ascend/virtual_ascend/device")
def test_backends_other_than_inductor_compile(python: Run) -> None:
    program = """
        import json, torch
        x = torch.ones(2, device="npu")
        functions = [torch.compile(lambda x: x + 1, backend=backend) for backend in ("eager", "aot_eager")]
        from torch._dynamo.utils import counters
        print(json.dumps([function(x).tolist() for function in functions] + [counters["frames"]["ok"]]))
    """
    done = python(program, timeout=200)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [[2, 2], [2, 2], 2]
    assert "runs eagerly" not in done.stderr

"""verl's HCCL checkpoint engine without vLLM, from an upstream package of the same shape, made here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from virtual_ascend.testing import free_port

pytestmark = pytest.mark.virtual

PACKAGE = {
    "verl/__init__.py": "",
    "verl/utils/__init__.py": "",
    "verl/utils/distributed.py": "def stateless_init_process_group(*args):\n    raise ImportError('vllm')\n",
    "verl/checkpoint_engine/__init__.py": "try:\n    from .hccl_checkpoint_engine import HCCLCheckpointEngine\n"
    "except ImportError:\n    HCCLCheckpointEngine = None\n",
    "verl/checkpoint_engine/hccl_checkpoint_engine.py": "from vllm.distributed.utils import StatelessProcessGroup\n"
    "from verl.utils.distributed import stateless_init_process_group\n\n"
    "class HCCLCheckpointEngine:\n    group: StatelessProcessGroup\n"
    "    make = staticmethod(stateless_init_process_group)\n",
}
MOVE = """
import json, sys
from concurrent.futures import ThreadPoolExecutor
import torch, torch_npu, torch.multiprocessing as multiprocessing

def rank_of(rank, port, folder):
    torch.npu.set_device(rank)
    import verl.checkpoint_engine as package
    communicator = package.HCCLCheckpointEngine.make("127.0.0.1", port, rank, 2, torch.npu.current_device())
    total = communicator.all_reduce(torch.tensor([rank + 1], dtype=torch.int8, device="npu"))
    bucket = torch.full((4,), 7 if rank == 0 else 0, dtype=torch.uint8, device="npu")
    communicator.broadcast(bucket, src=0)
    torch.npu.synchronize()
    communicator.destroyComm(communicator.comm)
    with open(f"{folder}/{rank}.json", "w") as file:
        where = (communicator.rank, communicator.world_size, str(communicator.device))
        json.dump([int(total), bucket.tolist(), communicator.disabled, "vllm" in sys.modules, where], file)

if __name__ == "__main__":
    multiprocessing.spawn(rank_of, (int(sys.argv[1]), sys.argv[2]), nprocs=2)
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    for name, text in PACKAGE.items():
        path = tmp_path / "package" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "package"


def test_ranks_meet_and_move_bytes_without_vllm(python, package: Path, tmp_path: Path) -> None:
    program = tmp_path / "move.py"
    program.write_text(MOVE)
    run = f"runpy.run_path('{program}', run_name='__main__')"
    words = f"import runpy, sys; sys.argv[1:] = ['{free_port()}', '{tmp_path}']; {run}"
    done = python(words, PYTHONPATH=str(package))
    assert done.returncode == 0, done.stderr
    found = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1)]
    assert found == [[3, [7] * 4, False, False, [rank, 2, f"npu:{rank}"]] for rank in (0, 1)]


def test_an_installed_vllm_is_left_its_place(python, package: Path) -> None:
    (package / "vllm").mkdir()
    (package / "vllm" / "__init__.py").write_text("")
    done = python("import verl.checkpoint_engine as p; print(p.HCCLCheckpointEngine)", PYTHONPATH=str(package))
    assert done.stdout.strip() == "None"

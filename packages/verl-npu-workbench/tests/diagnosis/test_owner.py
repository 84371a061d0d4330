from __future__ import annotations

import pytest
from verl_npu_workbench.diagnosis.judgement import judge
from verl_npu_workbench.diagnosis.owner import Owner, owner_of

from .quoted import raised

ODD = "ValueError: odd"
WORKER = "/opt/verl/verl/workers/fsdp_workers.py"


def owner(text: str) -> Owner | None:
    root = judge(text.splitlines()).root
    assert root is not None
    return owner_of(root.event)


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        (WORKER, Owner.VERL),
        ("/home/me/verl/recipe/dapo/main_dapo.py", Owner.RECIPE),
        ("/vllm-workspace/vllm-ascend/vllm_ascend/worker/worker.py", Owner.ENGINE),
        ("/opt/MindSpeed/mindspeed/core/mappings.py", Owner.TRAINING),
        ("/home/me/reward.py", Owner.YOURS),
        ("/usr/lib/python3.11/json/decoder.py", Owner.LIBRARY),
    ],
)
def test_the_owner_is_the_last_frames(file: str, expected: Owner) -> None:
    assert owner(raised(ODD, file)) is expected


def test_a_librarys_frame_says_less_than_the_one_that_called_it() -> None:
    library = '  File "/usr/lib/python3.11/site-packages/transformers/models/auto.py", line 3, in get\n'
    assert owner(raised(ODD, WORKER).replace(ODD, library + ODD)) is Owner.VERL


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("RuntimeError: vllm_ascend/ops/moe.py:12 is odd", Owner.ENGINE),
        ("RuntimeError: 'FusedMoEParallelConfig' is odd", Owner.ENGINE),
        ("RuntimeError: vllm_ascend/ops/moe.py and verl/protocol.py are odd", None),
        ("(WorkerDict pid=4) ValueError: odd", Owner.VERL),
        ("(EngineCore_0 pid=4) ValueError: odd", Owner.ENGINE),
        (ODD, None),
    ],
)
def test_without_frames_it_is_told_by_names_or_by_the_process(text: str, expected: Owner | None) -> None:
    assert owner(text) is expected

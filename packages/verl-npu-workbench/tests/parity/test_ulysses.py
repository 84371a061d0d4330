"""Two ranks that share a packed sequence agree with one process that has all of it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from verl_npu_workbench.prove.parity.compare import failures  # noqa: E402

from .processes import side  # noqa: E402
from .ulysses import MODELS, dtype_of  # noqa: E402

NEEDS_VERL = pytest.mark.skipif(find_spec("verl") is None, reason="needs verl")
pytestmark = [pytest.mark.virtual, pytest.mark.upstream, NEEDS_VERL]


@pytest.mark.nightly("verl_npu/features/attention", "verl_npu/features/fused_ops", "tests/parity")
def test_ulysses_computes_what_one_process_does(tmp_path: Path) -> None:
    def rank(number: int) -> None:
        group = {"RANK": str(number), "WORLD_SIZE": "2", "INIT": f"file://{tmp_path}/meet"}
        side("npu", tmp_path / "npu", module="tests.parity.ulysses", **group)

    with ThreadPoolExecutor() as threads:
        ranks = [threads.submit(rank, number) for number in range(2)]
        side("cpu", tmp_path / "cpu", module="tests.parity.ulysses")
        for waited in ranks:
            waited.result()
    expected, found = (torch.load(tmp_path / name) for name in ("cpu", "npu"))
    assert tuple(expected) == MODELS
    wrong = {name: failures({"values": found[name]}, expected[name], dtype_of(name)) for name in MODELS}
    assert not {name: lines for name, lines in wrong.items() if lines}

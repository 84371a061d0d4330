"""The operators of vllm-ascend's own library agree with torch, refuse bad arguments, and are where it has them."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import pytest
from virtual_ascend.testing import pythonpath_and
from virtual_ascend.testing.fixtures import Run

torch = pytest.importorskip("torch")

from virtual_ascend.operators import of_vllm_ascend, schemas  # noqa: E402
from virtual_ascend.operators.experts import moe_gating_top_k, npu_moe_init_routing_custom  # noqa: E402


def scores(**options: Any) -> Any:
    return torch.randn(5, 8, generator=torch.Generator().manual_seed(0), **options)


def gate(x: Any, **changes: Any) -> tuple[Any, Any, Any]:
    given = {"k": 2, "k_group": 1, "group_count": 1, "group_select_mode": 1, "renorm": 1, "norm_type": 0}
    given |= {"out_flag": False, "routed_scaling_factor": 1.0, "eps": 1e-20}
    return moe_gating_top_k(x, **given | changes)


@pytest.mark.parametrize("renorm", [0, 1])
def test_weights_of_a_softmax_are_divided_by_their_sum_if_that_is_asked(renorm: int) -> None:
    x = scores()
    weights, experts, _ = gate(x, renorm=renorm, routed_scaling_factor=2.0)
    best = x.softmax(-1).topk(2)
    assert torch.equal(experts.long(), best.indices)
    assert experts.dtype == torch.int32
    divided = best.values / best.values.sum(-1, keepdim=True)
    torch.testing.assert_close(weights, 2 * (divided if renorm else best.values))


@pytest.mark.parametrize("renorm", [0, 1])
def test_weights_of_sigmoids_are_divided_by_their_sum_always(renorm: int) -> None:
    x, bias = scores(), torch.arange(8.0)
    weights, experts, _ = gate(x, renorm=renorm, norm_type=1, bias_opt=bias)
    assert torch.equal(experts.long(), (x.sigmoid() + bias).topk(2).indices)
    chosen = x.sigmoid().gather(1, experts.long())
    torch.testing.assert_close(weights, chosen / chosen.sum(-1, keepdim=True))


def test_scores_are_undefined_unless_they_are_asked_for() -> None:
    assert gate(scores())[2].isnan().all()
    torch.testing.assert_close(gate(scores(), out_flag=True)[2], scores().softmax(-1))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"renorm": 2}, "renorm=2 is out of range"),
        ({"k": 9}, "k=9 is out of range for 8 experts"),
        ({"norm_type": 2}, "norm_type=2 is out of range"),
        ({"bias_opt": torch.zeros(8, dtype=torch.float16)}, "bias must have shape"),
        ({"x": scores(dtype=torch.float64)}, "float16, float32, or bfloat16"),
    ],
)
def test_what_the_gate_refuses(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(RuntimeError, match=f"^moe_gating_top_k: .*{words}"):
        gate(**{"x": scores()} | changes)


def test_rows_are_sorted_by_expert() -> None:
    x, experts = scores()[:3], torch.tensor([[2, 0], [1, 2], [0, 1]], dtype=torch.int32)
    rows, places, counts, _ = npu_moe_init_routing_custom(
        x, experts, expert_num=3, expert_tokens_num_type=1, expert_tokens_num_flag=True, quant_mode=-1
    )
    assert torch.equal(rows, x[[0, 2, 1, 2, 0, 1]])
    assert (places.tolist(), counts.tolist()) == ([4, 0, 2, 5, 1, 3], [2, 2, 2])


def test_rows_are_quantised_unless_that_is_switched_off_and_that_is_not_written() -> None:
    experts = torch.zeros(5, 1, dtype=torch.int32)
    with pytest.raises(
        NotImplementedError, match=r"^npu_moe_init_routing_custom: .* implement quantization \(quant_mode=0\)"
    ):
        npu_moe_init_routing_custom(scores(), experts, expert_num=3)


def test_they_take_what_their_schemas_say() -> None:
    for text in of_vllm_ascend.SCHEMAS:
        schema = torch._C.parse_schema(f"_C_ascend::{text}")
        function = of_vllm_ascend.OPERATORS[schema.name.partition("::")[2]]
        assert list(inspect.signature(function).parameters) == [argument.name for argument in schema.arguments]


PROGRAM = """
import json, torch, torch_npu
import vllm_ascend.vllm_ascend_C
said = {"there": hasattr(torch.ops._C_ascend, "moe_gating_top_k")}
if said["there"]:
    gate = torch.ops._C_ascend.moe_gating_top_k
    given = (1, 1, 1, 1, 1, 0, False, 1.0, 1e-20)
    said["experts"] = gate(torch.eye(3, device="npu"), *given)[1].tolist()
    try: gate(torch.eye(3), *given)
    except NotImplementedError as error: said["host"] = str(error)
print(json.dumps(said))
"""


@pytest.mark.parametrize(("release", "there"), [("0.11.0", False), ("0.13.0", True), ("0.23.0", True)])
def test_a_release_has_the_operators_of_its_own_library(
    release: str, there: bool, python: Run, tmp_path: Path
) -> None:
    (tmp_path / "vllm_ascend").mkdir()
    (tmp_path / "vllm_ascend" / "__init__.py").touch()
    metadata = tmp_path / f"vllm_ascend-{release}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm-ascend\nVersion: {release}\n")
    done = python(PROGRAM, PYTHONPATH=pythonpath_and(tmp_path))
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["there"] is there
    if there:
        assert said["experts"] == [[0], [1], [2]]
        assert "moe_gating_top_k" in said["host"]
        assert "runs on NPUs only" in said["host"]


def test_another_library_has_no_schema_of_torch_npus() -> None:
    assert not of_vllm_ascend.OPERATORS.keys() & schemas.of_version("2.10.0").keys()

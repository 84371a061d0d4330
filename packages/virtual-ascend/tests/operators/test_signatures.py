"""Every operator has the schema of the real one, in every recorded version of torch_npu.

The schema has names, order, types, defaults, and keyword-only parameters; `operators/schemas.json` holds those that
the wheels register.
"""

from __future__ import annotations

import inspect
import json
from typing import Any

import pytest
from virtual_ascend.testing.fixtures import Run

torch = pytest.importorskip("torch")

from virtual_ascend import operators  # noqa: E402
from virtual_ascend.operators import schemas  # noqa: E402

NEWEST = schemas.versions()[-1]
EMPTY = inspect.Parameter.empty


def parsed(version: str, name: str) -> list[Any]:
    return [torch._C.parse_schema(f"npu::{text}") for text in schemas.of_version(version).get(name, [])]


@pytest.mark.parametrize("name", operators.__all__)
def test_the_parameters_of_an_operator_are_those_of_the_newest_one(name: str) -> None:
    ours = [
        (p.name, p.kind is inspect.Parameter.KEYWORD_ONLY, () if p.default == [] else p.default)
        for p in inspect.signature(getattr(operators, name)).parameters.values()
    ]
    schema, *_ = parsed(NEWEST, name)
    theirs = [(a.name, a.kwarg_only, a.default_value if a.has_default_value() else EMPTY) for a in schema.arguments]
    taken = [(n, k, () if d == [] else d) for n, k, d in theirs if n in {own[0] for own in ours}]
    assert sorted(ours, key=place) == sorted(taken, key=place)


def place(parameter: tuple[str, bool, Any]) -> tuple[bool, str]:
    """Return a key that sorts keyword-only parameters by name, and leaves the others in order."""
    name, keyword_only, _ = parameter
    return keyword_only, name if keyword_only else ""


def test_a_parameter_that_is_not_written_takes_only_its_default() -> None:
    schema = torch._C.parse_schema("npu::npu_x(Tensor x, *, Tensor? scale=None, int mode=1) -> Tensor")
    call = schemas.by_name(lambda x: x + 1, schema)
    x = torch.zeros(2)
    assert torch.equal(call(x, scale=None, mode=1), x + 1)
    for name, value in (("scale", x), ("mode", 0)):
        with pytest.raises(NotImplementedError, match=f"npu_x: virtual-ascend does not implement {name}"):
            call(x, **{name: value})


@pytest.mark.parametrize(
    ("version", "like"),
    [("2.4", "2.5.1"), ("2.5.1", "2.5.1"), ("2.6.0", "2.5.1.post1"), ("2.7.1.post1", "2.7.1"), ("2.99", NEWEST)],
)
def test_a_version_has_the_schemas_of_the_newest_that_is_not_newer(version: str, like: str) -> None:
    assert schemas.of_version(version) == schemas.of_version(like)


PROGRAM = """
import json, torch, torch_npu
q = torch.ones(1, 1, 4, 8, device="npu")
out = {"permute": hasattr(torch_npu, "npu_moe_token_permute"),
       "same": torch_npu.npu_rms_norm is torch.ops.npu.npu_rms_norm}
for name, call in {
    "softmax_layout": lambda: torch_npu.npu_fusion_attention(q, q, q, 1, "BNSD", softmax_layout=""),
    "sink": lambda: torch_npu.npu_fusion_attention(q, q, q, 1, "BNSD", sink=torch.zeros(1, device="npu")),
    "seed": lambda: torch_npu.npu_fusion_attention(q, q, q, 1, "BNSD", seed=0),
    "typed": lambda: torch_npu.npu_fusion_attention(q, q, q, "1", "BNSD"),
    "keyword": lambda: torch_npu.npu_gelu(q, "tanh"),
}.items():
    try: call(); out[name] = True
    except (RuntimeError, TypeError): out[name] = False
schema = torch.ops.npu.npu_fusion_attention.default._schema
out["arguments"] = len(schema.arguments)
y = torch.ones(2, 4, device="npu", requires_grad=True)
torch.ops.npu.npu_swiglu(y).sum().backward(); out["gradient"] = y.grad is not None
print(json.dumps(out))
"""


@pytest.mark.parametrize(
    ("version", "has"),
    [
        ("2.5.1", ()),
        ("2.7.1", ("permute", "softmax_layout")),
        ("2.10.0", ("permute", "softmax_layout", "sink", "seed")),
    ],
)
def test_a_parameter_that_a_version_lacks_is_refused(python: Run, version: str, has: tuple[str, ...]) -> None:
    done = python(PROGRAM, VIRTUAL_ASCEND_TORCH_NPU_VERSION=version)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert {name: found[name] for name in ("permute", "softmax_layout", "sink", "seed")} == {
        name: name in has for name in ("permute", "softmax_layout", "sink", "seed")
    }
    assert (found["same"], found["typed"], found["keyword"], found["gradient"]) == (True, False, False, True)
    assert found["arguments"] == len(parsed(version, "npu_fusion_attention")[0].arguments)


SCHEMA_FITS_AND_ARGUMENTS_DO_NOT = """
import json, torch, torch_npu
def new(*shape, dtype=torch.float32): return torch.ones(*shape, dtype=dtype, device="npu")
def long(*values): return torch.tensor(values, device="npu")
CALLS = {
    "lengths": lambda: torch_npu.npu_fused_infer_attention_score(
        new(2, 4, 8), new(2, 4, 8), new(2, 4, 8), num_heads=1, input_layout="BSH", actual_seq_lengths=[4, 4, 4]),
    "block_table": lambda: torch_npu.npu_fused_infer_attention_score(
        new(4, 1, 8), new(5, 2, 8), new(5, 2, 8), num_heads=1, input_layout="TND", block_size=2,
        block_table=new(1, 5, dtype=torch.int32), actual_seq_lengths=[1, 2, 3, 4], actual_seq_lengths_kv=[2, 2, 2, 2]),
    "group_list": lambda: torch_npu.npu_grouped_matmul(
        [new(4, 2)], [new(2, 2, 2)], group_list=long(2, 4)[None], split_item=2, group_type=0),
    "experts": lambda: torch_npu.npu_moe_compute_expert_tokens(new(4), 2),
    "rows": lambda: torch_npu.npu_moe_finalize_routing(
        new(4, 2), None, None, None, new(2, 2), long(0, 9, 2, 3).int(), None, 2),
    "no x": lambda: torch_npu.npu_grouped_matmul(
        [], [new(2, 2, 2)], group_list=long(2, 4), split_item=2, group_type=0),
}
out = {}
for name, call in CALLS.items():
    try: call(); out[name] = "nothing"
    except Exception as error: out[name] = [type(error).__name__, str(error).splitlines()[0]]
print(json.dumps(out))
"""


def test_arguments_that_do_not_fit_are_an_error_of_the_operator(python: Run) -> None:
    done = python(SCHEMA_FITS_AND_ARGUMENTS_DO_NOT)
    assert done.returncode == 0, done.stderr
    for name, found in json.loads(done.stdout).items():
        assert found[0] == "RuntimeError", (name, found)
        assert found[1].startswith("npu_"), (name, found)

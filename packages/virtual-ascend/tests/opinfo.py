"""PyTorch's own operator samples (OpInfo) on the device `npu`: every result and gradient is the CPU's.

`python -m tests.opinfo` runs all of them, and prints a summary, and one line of JSON for each operator and dtype that
does not agree. `--part 3/40` runs every fortieth operator, from the third on. `--table` rewrites the tables in
docs/reference/virtual-ascend.md and its translation.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parents[3] / "docs" / "reference"
BEGIN, END = "<!-- refused: made by tests/opinfo.py -->", "<!-- end of refused -->"
SAMPLES = 12  # per operator and dtype; OpInfo has up to thousands, of the same code paths
SEED = 0
ROUNDING = {1: 0.1, 2: 1e-2, 4: 1e-5, 8: 1e-5, 16: 1e-10}  # by the bytes of a number; complex ones have 8 and 16


class Verdict(Enum):
    """The comparison of an operator on the NPU with the CPU's."""

    AGREES = "agrees"
    DIFFERS = "differs"  # runs, with another result
    REFUSED = "refused"  # raises, where the CPU does not
    UNTESTED = "untested"  # cannot be compared: no sample that the CPU runs, or results without fixed values


@dataclass(frozen=True, slots=True)
class Outcome:
    """One operator with one dtype."""

    operator: str
    dtype: str
    verdict: Verdict
    samples: int = 0
    gradients: int = 0
    reason: str = ""


# Results that the inputs do not determine: random numbers, or uninitialized memory.
DRAWN = {
    "bernoulli", "cauchy", "exponential", "geometric", "log_normal", "multinomial", "normal", "rand_like", "randint",
    "randint_like", "randn", "randn_like", "uniform", "empty", "empty_like", "empty_permuted", "empty_strided",
    "new_empty", "new_empty_strided", "svd_lowrank", "pca_lowrank", "nn.functional.rrelu",
}  # fmt: skip
DRAWING_WORDS = ("dropout", "fractional_max_pool", "multi_head_attention_forward")


def operators() -> list[Any]:
    """Return PyTorch's operators with samples, in its order."""
    from torch.testing._internal.common_methods_invocations import op_db

    return list(op_db)


def check_all(chosen: Iterable[Any]) -> Iterator[Outcome]:
    """Compare every operator in every dtype that its CPU kernel has."""
    import torch

    for operator in chosen:
        for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.bool):
            if operator.supports_dtype(dtype, "cpu"):
                yield check(operator, dtype)


def check(operator: Any, dtype: Any) -> Outcome:
    """Compare one operator in one dtype."""
    name = operator.name + (f".{operator.variant_test_name}" if operator.variant_test_name else "")
    outcome = Outcome(name, str(dtype).removeprefix("torch."), Verdict.UNTESTED)
    if operator.name in DRAWN or any(word in operator.name for word in DRAWING_WORDS):
        return dataclasses.replace(outcome, reason="its result is drawn, or memory as it was found")
    gradient = dtype.is_floating_point and operator.supports_autograd and dtype in operator.backward_dtypes
    compared = gradients = 0
    for sample in _samples(operator, dtype, gradient):
        expected = _run(operator, sample, "cpu", gradient)
        if isinstance(expected, Exception):
            continue  # not a sample of this dtype
        found = _run(operator, sample, "npu", gradient)
        if isinstance(found, Exception):
            return dataclasses.replace(outcome, verdict=Verdict.REFUSED, reason=_line(found))
        for what, theirs, ours in (("result", expected[0], found[0]), ("gradient", expected[1], found[1])):
            if difference := _difference(theirs, ours):
                return dataclasses.replace(outcome, verdict=Verdict.DIFFERS, reason=f"{what}: {difference}")
        compared += 1
        gradients += bool(expected[1])
    if not compared:
        return dataclasses.replace(outcome, reason="the CPU runs none of its samples")
    return dataclasses.replace(outcome, verdict=Verdict.AGREES, samples=compared, gradients=gradients)


def _samples(operator: Any, dtype: Any, gradient: bool) -> list[Any]:
    import torch

    torch.manual_seed(SEED)
    samples = list(operator.sample_inputs("cpu", dtype, requires_grad=gradient))
    samples = [sample for sample in samples if not sample.kwargs.get("dropout_p")]  # their results are random
    # torch_npu refuses these memory formats, and so does the device.
    orders = (torch.channels_last, torch.channels_last_3d)
    samples = [sample for sample in samples if sample.kwargs.get("memory_format") not in orders]
    step = max(1, len(samples) // SAMPLES)
    return samples[::step][:SAMPLES]


def _map(value: Any, change: Callable[[Any], Any]) -> Any:
    """Change every leaf of `value`; lists, tuples and dictionaries are kept."""
    import torch

    if isinstance(value, torch.Size):
        return value
    if isinstance(value, dict):
        return {key: _map(item, change) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_map(item, change) for item in value))
    if isinstance(value, list | tuple):
        return type(value)(_map(item, change) for item in value)
    return change(value)


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [leaf for item in value for leaf in _leaves(item)]
    return [value]


def _tensors(value: Any) -> list[Any]:
    import torch

    return [leaf for leaf in _leaves(value) if isinstance(leaf, torch.Tensor)]


def _run(operator: Any, sample: Any, device: str, gradient: bool) -> tuple[list[Any], list[Any]] | Exception:
    """Return result and gradients as host tensors, or the error."""
    import torch

    def place(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            moved = leaf.detach().clone() if device == "cpu" else leaf.detach().to(device)
            return moved.requires_grad_(leaf.requires_grad)
        if isinstance(leaf, torch.device) or leaf == "cpu":
            return torch.device(device)
        return leaf

    arguments = _map((sample.input, *sample.args), place)
    options = _map(sample.kwargs, place)
    leaves = [tensor for tensor in _tensors([arguments, options]) if tensor.requires_grad]
    try:
        torch.manual_seed(SEED)
        result = operator.op(*arguments, **options)
        outputs = _tensors(sample.output_process_fn_grad(result)) if gradient else []
        outputs = [tensor for tensor in outputs if tensor.requires_grad and tensor.dtype.is_floating_point]
        gradients: tuple[Any, ...] = ()
        if outputs and leaves:
            seeds = [_seed(tensor) for tensor in outputs]
            gradients = torch.autograd.grad(outputs, leaves, seeds, allow_unused=True)
        return _host(result), _host([item for item in gradients if item is not None])
    except Exception as error:  # the errors of operators are compared, too
        return error


def _seed(output: Any) -> Any:
    import torch

    values = torch.linspace(-1, 1, max(output.numel(), 1))[: output.numel()]
    return values.reshape(output.shape).to(device=output.device, dtype=output.dtype)


def _host(value: Any) -> list[Any]:
    import torch

    return [leaf.detach().to("cpu") if isinstance(leaf, torch.Tensor) else leaf for leaf in _leaves(value)]


def _difference(expected: list[Any], found: list[Any]) -> str:
    import torch

    if len(expected) != len(found):
        return f"{len(found)} values, the CPU has {len(expected)}"
    for theirs, ours in zip(expected, found, strict=True):
        if not isinstance(theirs, torch.Tensor):
            if type(theirs) is not type(ours):
                return f"a {type(ours).__name__}, the CPU has a {type(theirs).__name__}"
            continue
        if theirs.dtype == torch.float64 and ours.dtype == torch.float32:
            theirs = theirs.float()  # torch_npu casts float64 to float32
        try:
            torch.testing.assert_close(ours, theirs, **_tolerance(theirs), equal_nan=True, check_layout=True)
        except AssertionError as error:
            return _line(error)
    return ""


def _tolerance(expected: Any) -> dict[str, float]:
    """Return no tolerance but for rounding: some operators take another path on the CPU than on every other device."""
    import torch

    if expected.layout is not torch.strided or not (expected.is_floating_point() or expected.is_complex()):
        return {"rtol": 0, "atol": 0}
    finite = expected[expected.isfinite()].abs()
    share = ROUNDING[expected.dtype.itemsize]
    return {"rtol": share, "atol": share * (finite.max().item() if finite.numel() else 0)}


def _line(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 160 else text[:157] + "..."


def write_table(page: Path, refused: Iterable[Outcome]) -> None:
    """Put the refused operators between the page's two marks."""
    before, _, rest = page.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    rows: dict[tuple[str, str], list[str]] = {}
    for outcome in refused:
        rows.setdefault((outcome.operator, outcome.reason), []).append(outcome.dtype)
    lines = [f"| `{name}` | {', '.join(dtypes)} | {reason} |" for (name, reason), dtypes in sorted(rows.items())]
    table = "\n".join(["| operator | dtypes | reason |", "|---|---|---|", *lines])
    page.write_text(f"{before}{BEGIN}\n{table}\n{END}{after}")


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Hide the warnings of OpInfo's samples, much of which is deprecated."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def main(arguments: list[str]) -> int:
    """Run the requested operators; return 1 where one differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", default="1/1", help="for instance 3/40")
    parser.add_argument("--table", action="store_true", help="rewrite the tables of the documentation")
    parser.add_argument("--only", help="names that contain this")
    options = parser.parse_args(arguments)
    part, parts = (int(word) for word in options.part.split("/"))
    chosen = operators()[part - 1 :: parts]
    if options.only:
        chosen = [operator for operator in chosen if options.only in operator.name]
    counts: Counter[Verdict] = Counter()
    refused: list[Outcome] = []
    with quiet():
        for outcome in check_all(chosen):
            counts[outcome.verdict] += 1
            refused += [outcome] if outcome.verdict is Verdict.REFUSED else []
            if outcome.verdict is not Verdict.AGREES:
                fields = {**dataclasses.asdict(outcome), "verdict": outcome.verdict.value}
                print(json.dumps(fields), flush=True)
    print(json.dumps({verdict.value: counts[verdict] for verdict in Verdict}))
    if options.table:
        for page in sorted(DOCS.glob("virtual-ascend*.md")):
            write_table(page, refused)
    return 1 if counts[Verdict.DIFFERS] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

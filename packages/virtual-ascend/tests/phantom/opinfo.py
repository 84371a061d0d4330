"""PyTorch's own operator samples (OpInfo) on phantoms: results look like the CPU's, and the same calls are refused.

`python -m tests.phantom.opinfo [--part 3/40]`, with VIRTUAL_ASCEND_PHANTOM so small that all numbers are phantoms,
prints one line of JSON per operator and fault, and how many calls were compared.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from .. import opinfo


def _run(operator: Callable[..., Any], sample: Any, device: str) -> Any:
    """Return the operator's result on a device, or its error."""
    import torch

    def place(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return leaf.detach().clone().to(device)
        return torch.device(device) if isinstance(leaf, torch.device) or leaf == "cpu" else leaf

    arguments = opinfo._map((sample.input, *sample.args), place)
    options = opinfo._map(sample.kwargs, place)
    try:
        torch.manual_seed(opinfo.SEED)
        return operator(*arguments, **options)
    except Exception as error:  # the errors of operators are compared, too
        return error


def _given(sample: Any) -> list[Any]:
    return opinfo._tensors([(sample.input, *sample.args), sample.kwargs])


def _looks(value: Any) -> list[Any]:
    """Return shape and dtype of each tensor; an NPU casts float64 to float32."""
    return [(list(each.shape), str(each.dtype).replace("float64", "float32")) for each in opinfo._tensors(value)]


def _faults(forms: dict[str, Callable[..., Any]], samples: list[Any]) -> Iterator[tuple[str, str]]:
    """Yield whether each call was compared or refused, and its faults in words."""
    for sample in samples:
        for form, operator in forms.items():
            expected, found = (_run(operator, sample, device) for device in ("cpu", "npu"))
            if isinstance(found, NotImplementedError) and "is a phantom" in str(found):
                yield "needs values", ""
            elif isinstance(expected, Exception):
                yield "refused" if isinstance(found, Exception) else "accepted", f"{form}: {opinfo._line(expected)}"
            elif isinstance(found, Exception):
                yield "refused wrongly", f"{form}: {opinfo._line(found)}"
            else:
                same = _looks(expected) == _looks(found)
                yield "alike" if same else "unlike", f"{form}: {_looks(expected)[:2]} {_looks(found)[:2]}"


def check(operator: Any) -> Iterator[dict[str, str]]:
    """Compare one operator in all of its forms: yield one line for each call."""
    import torch

    name = operator.name + (f".{operator.variant_test_name}" if operator.variant_test_name else "")
    forms = {"": operator.op, "in place": operator.inplace_variant}
    forms = {form: each for form, each in forms.items() if each is not None}
    samples = []
    if operator.supports_dtype(torch.float32, "cpu"):
        samples += opinfo._samples(operator, torch.float32, False)
    if operator.error_inputs_func is not None:
        samples += [each.sample_input for each in operator.error_inputs("cpu")]
    # Errors of devices are not shown here.
    samples = [each for each in samples if not any(tensor.is_meta for tensor in _given(each))]
    for verdict, said in _faults(forms, samples):
        yield {"operator": name, "verdict": verdict, "said": said}


def main() -> None:
    """Run the requested part."""
    asking = argparse.ArgumentParser(description=__doc__)
    asking.add_argument("--part", default="1/1")
    asked = asking.parse_args()
    part, parts = (int(word) for word in asked.part.split("/"))
    counts: Counter[str] = Counter()
    with opinfo.quiet():
        for operator in opinfo.operators()[part - 1 :: parts]:
            for line in check(operator):
                counts[line["verdict"]] += 1
                if line["verdict"] in ("accepted", "refused wrongly", "unlike"):
                    print(json.dumps(line), flush=True)
    print(json.dumps(counts))


if __name__ == "__main__":
    main()

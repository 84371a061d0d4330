"""One of the two processes: `python -m tests.differential.observing FIRST` makes the calls from number FIRST on.

It prints a line of JSON before and after each call, so that a call that ends the process can be identified.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import signal
import sys
import traceback
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from .behaviours import BEHAVIOURS
from .calls import Call, T, calls

SECONDS = 20
SHOWN = 64  # the elements of a result that are compared

_OURS = (os.path.join("virtual_ascend", "operators"), os.path.join("virtual_ascend", "real"))


def work() -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield all observations, by name and in order."""
    yield "names", names
    yield "schemas", schemas
    for label, behaviour in BEHAVIOURS.items():
        yield f"behaviour {label}", lambda behaviour=behaviour: ended(behaviour, as_text)
    for call in calls():
        yield f"call {call.label}", lambda call=call: ended(lambda: made(call), as_results)
    for call in filter(lambda call: call.valid, calls()):
        yield f"gradient {call.label}", lambda call=call: ended(lambda: differentiated(call), as_results)


def made(call: Call) -> Any:
    """Make one call."""
    import torch_npu

    operator = getattr(torch_npu, call.operator)
    args = [tensor(value) for value in call.args]
    return operator(*args, **{key: tensor(value) for key, value in call.options.items()})


def differentiated(call: Call) -> list[Any]:
    """Return the gradients of the floating-point arguments; None for those that the results do not depend on."""
    import torch
    import torch_npu

    args = [tensor(value) for value in call.args]
    options = {key: tensor(value) for key, value in call.options.items()}
    given = [part for value in (*args, *options.values()) for part in (value if isinstance(value, list) else [value])]
    leaves = [part.requires_grad_() for part in given if isinstance(part, torch.Tensor) and part.is_floating_point()]
    results = getattr(torch_npu, call.operator)(*args, **options)
    made = results if isinstance(results, list | tuple) else [results]
    # If no result has a gradient torch raises, as it does to a program that trains.
    outputs = [part for part in made if isinstance(part, torch.Tensor) and part.requires_grad] or list(made[:1])
    cotangents = [tensor(T(tuple(part.shape), str(part.dtype).removeprefix("torch."))) for part in outputs]
    return list(torch.autograd.grad(outputs, leaves, cotangents, allow_unused=True))


def tensor(value: object) -> Any:
    """Return the argument that a description describes."""
    import torch

    if isinstance(value, list):
        return [tensor(each) for each in value]
    if not isinstance(value, T):
        return value
    dtype = getattr(torch, value.dtype)
    if value.values is not None:
        made = torch.tensor(value.values).to(dtype).reshape(value.shape)
    elif dtype.is_floating_point:
        made = torch.randn(value.shape, generator=torch.Generator().manual_seed(len(value.shape))).to(dtype)
    else:
        made = torch.zeros(value.shape, dtype=dtype)
    return made.to(value.device)


def ended(action: Callable[[], Any], shown: Callable[[Any], Any]) -> dict[str, Any]:
    """Return the end of an action: its result, or its error, and whether our reference raised it."""
    try:
        return {"end": "returns", "what": shown(action())}
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        return {
            "end": "raises",
            "type": type(error).__name__,
            "said": (str(error).strip().splitlines() or [""])[0][:200],
            "reference": any(part in frame.filename for frame in frames for part in _OURS),
        }


def as_text(value: Any) -> Any:
    """Return a behavior's result as text."""
    return repr(value)[:200]


def as_results(value: Any) -> list[dict[str, Any]]:
    """Return an operator's results."""
    import torch

    if isinstance(value, list | tuple):
        return [part for each in value for part in as_results(each)]
    if not isinstance(value, torch.Tensor):
        return [{"type": type(value).__name__}]
    numbers = value.detach().cpu().double().flatten()[:SHOWN].tolist()
    return [{"dtype": str(value.dtype), "shape": list(value.shape), "values": numbers}]


def names() -> dict[str, Any]:
    """Return the public names of each module, with the parameters of functions and the public members of classes."""
    import importlib

    import torch_npu  # noqa: F401

    found: dict[str, Any] = {}
    for module in MODULES:
        with contextlib.suppress(ImportError):
            loaded = importlib.import_module(module)
            found[module] = {
                name: {**described(value), "own": of_torch_npu(name, value)}
                for name, value in offered(loaded).items()
                if not name.startswith("_")
            }
    return found


def offered(module: types.ModuleType) -> dict[str, Any]:
    """Return the names of a module, also those that its `__getattr__` makes on request."""
    lazy = (name for name in getattr(module, "__all__", ()) if hasattr(module, name))
    return {**vars(module), **{name: getattr(module, name) for name in lazy}}


MODULES = (
    "torch_npu",
    "torch_npu.npu",
    "torch_npu.npu.amp",
    "torch_npu.npu.memory",
    "torch_npu.npu.mstx",
    "torch_npu.npu.random",
    "torch_npu.npu.streams",
    "torch_npu.npu.utils",
    "torch_npu.utils",
    "torch_npu.profiler",
    "torch_npu.distributed",
    "torch_npu.multiprocessing",
    "torch_npu.contrib",
    "torch_npu.version",
)


def of_torch_npu(name: str, value: object) -> bool:
    """Return whether a name is the module's own, not taken from elsewhere."""
    if isinstance(value, types.ModuleType):
        return value.__name__.startswith("torch_npu")
    return not str(getattr(value, "__module__", None) or "torch_npu").startswith(
        (
            "typing",
            "collections",
            "__future__",
            "enum",
            "dataclasses",
            "verl_npu",
            "pathlib",
            "packaging",
            "contextlib",
        )
    )


def described(value: Any) -> dict[str, Any]:
    """Return the properties of a name that can be compared."""
    out: dict[str, Any] = {"missing": type(value).__name__ == "Unimplemented"}
    if inspect.isclass(value):
        out["members"] = sorted(name for name in dir(value) if not name.startswith("_") and hasattr(value, name))
    elif inspect.isfunction(value):
        parameters = inspect.signature(value).parameters.values()
        kinds = {parameter.kind for parameter in parameters}
        if not kinds & {inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL}:
            out["parameters"] = [parameter.name for parameter in parameters]
    return out


def schemas() -> dict[str, list[str]]:
    """Return the schemas of the operators that we write, where this torch_npu has them."""
    import torch
    import torch_npu  # noqa: F401
    from virtual_ascend import operators

    found = {}
    for name in operators.__all__:
        packet = getattr(torch.ops.npu, name, None)
        if packet is not None:
            found[name] = sorted(str(getattr(packet, overload)._schema) for overload in packet.overloads())
    return found


def main() -> None:
    """Observe, and print the results."""
    warnings.simplefilter("ignore")
    first = int(sys.argv[1])
    chosen = set(sys.argv[2:])
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    # Without a handler the alarm ends the process, in C++ as well.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    import torch_npu  # noqa: F401 - before any alarm, since the first import on a machine compiles for minutes

    for number, (label, action) in enumerate(work()):
        if number < first or (chosen and not any(label.startswith(start) for start in chosen)):
            continue
        print(json.dumps([number, label]), file=out, flush=True)
        signal.alarm(SECONDS)
        result = action()
        signal.alarm(0)
        print(json.dumps([number, label, result]), file=out, flush=True)


if __name__ == "__main__":
    main()

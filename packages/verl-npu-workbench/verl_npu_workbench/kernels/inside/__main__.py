"""Handles one request: reads the kernels in some files, or compiles some kernels of one file."""

from __future__ import annotations

import ast
import functools
import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from . import compiling, guessing, launchers
from .loading import Loaded, Loader, Tuned, is_jit
from .strangers import strangers_in


def main() -> None:
    """Read the request from stdin, and write the response to stdout."""
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    question = json.load(sys.stdin)
    with tempfile.TemporaryDirectory() as scratch:
        compiling.prepare(question["soc"], Path(scratch), question["version"])
        loader = Loader(Path(question["root"]))
        task = {"read": _read, "compile": _compile}[question["task"]]
        json.dump(task(loader, question), answer)
        answer.flush()


def _read(loader: Loader, question: Mapping[str, Any]) -> dict[str, object]:
    """Return all kernels in some files, each with arguments that it can be launched with."""
    kernels: list[dict[str, object]] = []
    unread: list[dict[str, object]] = []
    for name in question["files"]:
        try:
            found = loader.load(Path(name))
        except (SyntaxError, OSError, UnicodeDecodeError, ValueError) as error:
            unread.append({"file": name, "why": f"{type(error).__name__}: {error}"})
            continue
        kernels += _kernels(found)
    return {"kernels": kernels, "unread": unread}


def _kernels(found: Loaded) -> Iterator[dict[str, object]]:
    functions = {node.name: node for node in ast.walk(found.tree) if isinstance(node, ast.FunctionDef)}
    jits = {name: node for name, node in functions.items() if any(map(is_jit, node.decorator_list))}
    top = {node.name for node in _top(found.tree.body)}
    parameters = {name: [each.arg for each in node.args.args] for name, node in jits.items()}
    launched = launchers.launches(found.tree, parameters, vars(found.module))
    called = {
        call.func.id
        for node in jits.values()
        for call in ast.walk(node)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name)
    }
    for name, node in jits.items():
        if name not in launched and (name in called or _returns(node)):
            continue
        about = {"name": name, "module": found.module.__name__, "file": str(found.path), "line": node.lineno}
        if name not in top:
            yield {**about, "why": "it is defined inside a function", "cases": []}
            continue
        kernel, configs, values = unwrapped(vars(found.module).get(name))
        if kernel is None:
            why = f"its definition failed: {found.failed.get(name, 'reading its file did not define a kernel')}"
            yield {**about, "why": why, "cases": []}
            continue
        about |= {"source": _source(kernel), "launched": name in launched, "calls": _calls(kernel, found.path)}
        try:
            use = guessing.use_of(functions[name], compiling.functions_of(kernel))
            launch = max(launched.get(name, []), key=lambda each: len(each.given), default=launchers.Launch({}, {}))
            guesses = [
                (config, guessing.guess(kernel, use, getattr(config, "kwargs", {}), launch.given, values))
                for config in configs or [None]
            ]
            cases = [_case(config, made, launch.options) for config, made in guesses]
        except Exception as error:  # an error in one kernel must not hide the others
            yield {**about, "why": f"its arguments cannot be guessed: {type(error).__name__}: {error}", "cases": []}
            continue
        yield {**about, "why": "", "cases": cases}


def _calls(kernel: guessing.Kernel, path: Path) -> list[list[str]]:
    """Return the functions in other files that a kernel may call, each with its file."""
    places = ((each.fn.__code__.co_filename, each.fn.__name__) for each in compiling.functions_reached(kernel))
    return [[file, name] for file, name in places if Path(file) != path]


def _top(body: list[ast.stmt]) -> Iterator[ast.FunctionDef]:
    for node in body:
        if isinstance(node, ast.FunctionDef):
            yield node
        elif isinstance(node, (ast.If, ast.Try, ast.With)):
            yield from _top(node.body)
            yield from _top(getattr(node, "orelse", []))
            for handler in getattr(node, "handlers", []):
                yield from _top(handler.body)


def _returns(node: ast.FunctionDef) -> bool:
    return any(isinstance(each, ast.Return) and each.value is not None for each in ast.walk(node))


def unwrapped(value: Any) -> tuple[Any, list[object], dict[str, guessing.Heuristic]]:
    """Unwrap a kernel's decorators. Return the JITFunction, the configurations, and the heuristics."""
    configs: list[object] = []
    values: dict[str, guessing.Heuristic] = {}
    for _ in range(10):
        if hasattr(value, "params") and hasattr(value, "src"):
            return value, configs, values
        if isinstance(value, Tuned):
            configs, values = configs or value.configs, {**value.values, **values}
        if strangers_in(value) or not hasattr(value, "fn"):
            break
        value = value.fn
    return None, configs, values


def _source(kernel: guessing.Kernel) -> str:
    """Return a hash of a kernel's source code and of the global values that the code uses."""
    try:
        # Computing the cache key makes Triton record the globals that the kernel uses.
        text = kernel.cache_key
        values = kernel.used_global_vals.items()
        text += repr(sorted((name, repr(value)) for (name, _), (value, _) in values))
    except Exception as error:  # the front end will report it
        text = f"{kernel.src} {error}"
    return hashlib.sha256(text.encode()).hexdigest()


def _case(config: object, made: guessing.Guess, options: Mapping[str, int | bool]) -> dict[str, object]:
    return {
        "signature": made.signature,
        "constants": {key: compiling.encoded(value) for key, value in made.constants.items()},
        "divisible": made.divisible,
        "ones": made.ones,
        "options": {**options, **_options(config)},
        "guessed": True,
        "unsure": sorted(made.guessed),
        "label": ", ".join(f"{key}={value}" for key, value in getattr(config, "kwargs", {}).items()),
    }


def _options(config: object) -> dict[str, object]:
    names = ("num_warps", "num_stages", "num_ctas", "multibuffer")
    return {name: value for name in names if isinstance(value := getattr(config, name, None), (int, bool))}


def _compile(loader: Loader, question: Mapping[str, Any]) -> dict[str, object]:
    """Return the verdicts on kernels of one file, in the order of the jobs."""
    results: list[dict[str, object]] = []
    found = loader.load(Path(question["file"]))
    for job in question["jobs"]:
        kernel, _, _ = unwrapped(vars(found.module).get(job["name"]))
        if kernel is None:
            results.append({"verdict": "not judged", "why": "reading its file did not define a kernel"})
            continue
        task = functools.partial(compiling.compile_kernel, kernel, job["case"], question["soc"])
        results.append(compiling.in_child(task, question["limits"]))
    return {"results": results}


if __name__ == "__main__":
    main()

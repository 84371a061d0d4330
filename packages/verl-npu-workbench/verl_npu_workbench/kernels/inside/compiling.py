"""Compiles one kernel as triton-ascend does, up to the call of hivmc, the closed-source part of CANN's compiler."""

from __future__ import annotations

import ast
import contextlib
import importlib
import os
import re
import resource
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from . import guessing
from .strangers import strangers_in

_HIVMC = "HIVMC-WAS-CALLED"
_OVERFLOW = re.compile(r"\b(\w{1,20}) overflow, requires (\d{1,20}) bits while (\d{1,20}) bits")
_RETRIED = re.compile(r"overflow detected; automatically ([^\n;]{1,200}) and retrying")
_MOST_TEXT = 2000
_STUB = f"""#!/bin/sh
out=
while [ $# -gt 0 ]; do
  case "$1" in --version) echo "hivmc {{version}}"; exit 0;; -o) out="$2"; shift;; esac
  shift
done
echo {_HIVMC} >&2
for each in "$out" "$out.o" "${{{{out}}}}_reloc.o"; do : > "$each"; done
"""
"""A shell script that replaces hivmc, which only CANN contains. If the script is called, all earlier stages have
succeeded."""


class Machine:
    """A stand-in for the NPU that provides the properties that the compiler queries."""

    def __init__(self, arch: str, cores: int) -> None:
        self.arch, self.cores = arch, cores

    def get_arch(self) -> str:
        return self.arch

    def get_aicore_num(self) -> int:
        return self.cores

    def get_aivector_core_num(self) -> int:
        return 2 * self.cores

    def get_device_properties(self, _device: object = None) -> dict[str, int]:
        return {"max_shared_mem": 1, "num_aicore": self.cores, "num_vectorcore": 2 * self.cores}


class Driver:
    """A stand-in for Triton's driver, for files that query the driver when they are imported."""

    def __init__(self, machine: Machine) -> None:
        self.utils = machine

    def get_current_target(self) -> object:
        return importlib.import_module("triton.backends.compiler").GPUTarget("npu", self.utils.arch, 0)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, _device: object = None) -> int:
        return 0

    def get_device_interface(self) -> NoReturn:
        raise NotImplementedError("this process has no device")


def prepare(soc: Mapping[str, Any], scratch: Path, version: str) -> Machine:
    """Set up this process so that triton-ascend detects the NPU `soc` and an installed hivmc."""
    for name in ("hivmc", "hivmc-a5"):
        program = scratch / name
        program.write_text(_STUB.format(version=version))
        program.chmod(0o755)
    os.environ["PATH"] = f"{scratch}:{os.environ['PATH']}"
    machine = Machine(str(soc["arch"]), int(soc["cores"]))
    vars(backend())["NPUUtils"] = lambda: machine
    importlib.import_module("triton.runtime.driver").driver.set_active(Driver(machine))
    return machine


def backend() -> ModuleType:
    """Return the module that contains triton-ascend's compiler."""
    return importlib.import_module("triton.backends.ascend.compiler")


def in_child(task: Callable[[], Mapping[str, object]], limits: Mapping[str, float]) -> dict[str, object]:
    """Call `task` in a child process with limits, and return the result of `task`. If there is no result, return a
    verdict that states how the process exited."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        _child(task, reader, writer, limits)
    os.close(writer)
    data, late = _read(reader, limits["seconds"])
    if late:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if late:
        return {"verdict": "not judged", "why": f"the compiler was still running after {limits['seconds']:.0f} s"}
    if os.WIFSIGNALED(status) or not data:
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        name = signal.Signals(number).name if number else f"status {os.waitstatus_to_exitcode(status)}"
        return {"verdict": "crashed", "stage": "front end", "why": f"the front end ended by {name}"}
    return importlib.import_module("json").loads(data)  # type: ignore[no-any-return]


def _child(task: Callable[[], Mapping[str, object]], reader: int, writer: int, limits: Mapping[str, float]) -> None:
    status = 1
    try:
        os.close(reader)
        os.setpgid(0, 0)
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        memory = int(limits["memory"])
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        answer = importlib.import_module("json").dumps(task()).encode()
        while answer:
            answer = answer[os.write(writer, answer) :]
        status = 0
    finally:
        os._exit(status)


def _read(reader: int, seconds: float) -> tuple[bytes, bool]:
    end, data = time.monotonic() + seconds, b""
    with os.fdopen(reader, "rb", buffering=0) as stream:
        while (left := end - time.monotonic()) > 0:
            if select.select([stream], [], [], left)[0]:
                chunk = stream.read(1 << 16)
                if not chunk:
                    return data, False
                data += chunk
    return data, True


def compile_kernel(kernel: guessing.Kernel, case: Mapping[str, Any], soc: Mapping[str, Any]) -> dict[str, object]:
    """Compile a kernel with the arguments in `case`, and return the verdict."""
    try:
        kernel.cache_key  # noqa: B018 - makes Triton record the globals that the kernel uses
    except Exception as error:
        return {**_refused(kernel, error), **_missing_attribute(kernel, error)}
    constants = {name: decoded(value) for name, value in case["constants"].items()}
    made = guessing.Guess(dict(case["signature"]), constants, list(case["divisible"]), list(case["ones"]))
    made.guessed = set(case["unsure"])
    options = {**soc["options"], **case.get("options", {})}
    found = _compile(kernel, made, options)
    if case["guessed"] and _may_be_the_guess(found, made):
        for near in guessing.variants(
            made, guessing.use_of(functions_of(kernel)[kernel.fn.__name__], functions_of(kernel))
        ):
            other = _compile(kernel, near, options)
            if not _may_be_the_guess(other, near):
                return {**_judged(kernel, other, near, options), "signature": near.signature}
        # If the compiler rejects a guess, this shows nothing about the kernel.
        found = {**found, "verdict": "not judged", "stage": "", "why": f"no guessed arguments fit it: {found['why']}"}
    return {**_judged(kernel, found, made, options), "signature": made.signature}


def _judged(
    kernel: guessing.Kernel, found: dict[str, object], made: guessing.Guess, options: Mapping[str, Any]
) -> dict[str, object]:
    """If an overflow depends on guessed arguments, weaken the verdict to "may overflow"."""
    if found["verdict"] != "overflows" or not made.guessed:
        return found
    guesses = guessing.rests_on(made, lambda near: _compile(kernel, near, options)["verdict"] == "overflows")
    said = ", ".join(f"{name}={value}" for name, value in guesses.items())
    return {**found, "verdict": "may overflow", "why": said} if guesses else found


_UNSUPPORTED = re.compile(
    r"module 'triton[\w.]*' has no attribute|Cannot access global variable|nsupported (?:AST|language)|"
    r"target doesn't|unsupported AST node|is not supported|not supported in this context|has not been implemented"
)
"""Front-end messages about constructs that it does not support, whatever the arguments are."""


_TYPE = re.compile(r"(?:but got|unexpected type) (fp64|fp8)")
"""The front end's message about a type that the NPU does not support."""
_NONE_CALLED = "'NoneType'"
"""Part of the front end's message about a libdevice function that Ascend lacks. The function's name is then bound to
None."""


def _may_be_the_guess(found: Mapping[str, object], made: guessing.Guess) -> bool:
    own, why = found["verdict"] == "refused" and found.get("stage") == "front end", str(found.get("why", ""))
    lacking = _TYPE.search(why)
    if lacking is not None and not any(lacking[1] in each for each in made.signature.values()):
        # The type comes from the kernel's own code.
        return False
    if "boundary_check" in why:
        # The kernel may expect a block pointer, and a guess never is one.
        return own
    if _NONE_CALLED in why and not any(value is None or isinstance(value, bool) for value in made.constants.values()):
        # No argument is None, and no flag can have left a value undefined.
        return False
    return own and not _UNSUPPORTED.search(why)


def functions_of(kernel: guessing.Kernel) -> dict[str, ast.FunctionDef]:
    """Return a mapping from function names to syntax trees, for a kernel and all functions that the kernel may
    call."""
    found = {}
    for function in functions_reached(kernel):
        tree = ast.parse(function.src)
        if isinstance(tree.body[0], ast.FunctionDef):
            found[function.fn.__name__] = tree.body[0]
    return found


def _compile(kernel: guessing.Kernel, made: guessing.Guess, given: Mapping[str, Any]) -> dict[str, object]:
    compiler = importlib.import_module("triton.compiler.compiler")
    ascend, ir = backend(), importlib.import_module("triton._C.libtriton").ir
    target = Driver(ascend.NPUUtils()).get_current_target()
    instance = ascend.AscendBackend(target)
    known = {key: value for key, value in given.items() if key in ascend.NPUOptions.__dataclass_fields__}
    options = instance.parse_options(known)
    source = compiler.ASTSource(kernel, made.signature, made.constants, _attributes(ascend, kernel, made))
    context = ir.context()
    ir.load_dialects(context)
    instance.load_dialects(context)
    try:
        module = source.make_ir(options, instance.get_codegen_implementation(), instance.get_module_map(), context)
    except Exception as error:
        return _refused(kernel, error)
    stages: dict[str, Callable[[object, dict[str, object]], object]] = {}
    instance.add_stages(stages, options)
    metadata = {"hash": "verl-npu", "target": target, **options.__dict__}
    recorder, hang = _Recorder(), ""
    vars(ascend)["subprocess"] = recorder
    for name, stage in stages.items():
        try:
            module = stage(module, metadata)
            hang = hang or (endless_wait(module) if isinstance(module, str) else "")
        except subprocess.CalledProcessError as error:
            return _program_failure(name, error, recorder)
        except OSError as error:
            return {"verdict": "not judged", "why": f"cannot start a program of the compiler: {error}"}
        except Exception as error:
            return {"verdict": "refused", "stage": _STAGES[name], "why": _short(f"{type(error).__name__}: {error}")}
    if _HIVMC not in recorder.said:
        return {"verdict": "not judged", "why": "the compiler ended without an error before its last stage"}
    if hang:
        return {"verdict": "hangs", "stage": "adapter", "why": hang}
    return {"verdict": "compiles", "notes": _RETRIED.findall(recorder.said)[-1:], "mix": metadata.get("mix_mode", "")}


_SIGNAL = re.compile(r"hivm\.hir\.sync_block_(set|wait)\[[^\]]{0,300}\] flag = (\S{1,200})")


def endless_wait(text: str) -> str:
    """Describe a flag with more waits than sets in a kernel, or return an empty string if there is no such flag.

    `text` is the adapter's output. In this output, a flag's waits and sets can be compared, because a kernel's matrix
    cores and vector cores run the same code. A flag inside a loop or a condition is described only if it is never set.
    A kernel that computes the ID of a flag at run time is not judged.
    """
    given: dict[str, list[str]] = {}
    certain: dict[str, bool] = {}
    depth = 0
    for line in text.splitlines():
        found = _SIGNAL.search(line)
        if found is not None:
            kind, flag = found.groups()
            if not flag.isdigit():
                return ""
            given.setdefault(flag, []).append(kind)
            certain[flag] = certain.get(flag, True) and depth <= _FUNCTION_DEPTH
        depth += line.count("{") - line.count("}")
    for flag, kinds in given.items():
        waits, signals = kinds.count("wait"), kinds.count("set")
        if waits and not signals:
            return f"it waits for flag {flag}, which it never sets"
        if certain[flag] and waits > signals:
            return f"it waits {waits} times for flag {flag}, and sets it {signals} times"
    return ""


_FUNCTION_DEPTH = 2
"""The number of braces around a statement outside loops and conditions: one of the module and one of the function."""
_STAGES = {"ttir": "front end", "ttadapter": "adapter", "npubin": "compiler"}


class _Recorder:
    """A stand-in for `subprocess` in triton-ascend. It keeps the output of the programs that triton-ascend runs."""

    def __init__(self) -> None:
        self.said = ""

    def __getattr__(self, name: str) -> Any:
        return getattr(subprocess, name)

    def run(self, command: list[str], **options: Any) -> subprocess.CompletedProcess[bytes]:
        check = options.pop("check", False)
        done = subprocess.run(command, **options)
        if "--help" not in command:
            self.said += "".join(
                part.decode(errors="replace") for part in (done.stdout, done.stderr) if isinstance(part, bytes)
            )
        if check and done.returncode:
            raise subprocess.CalledProcessError(done.returncode, command, done.stdout, done.stderr)
        return done


def _attributes(ascend: ModuleType, kernel: guessing.Kernel, made: guessing.Guess) -> Any:
    numbers = {each.name: each.num for each in kernel.params}
    attributes = ascend.AscendAttrsDescriptor()
    attributes.arg_properties = {
        "tt.divisibility": sorted(numbers[name] for name in made.divisible if name in numbers),
        "tt.equal_to": sorted(numbers[name] for name in made.ones if name in numbers),
    }
    attributes._init_slots()
    return attributes


def _program_failure(stage: str, error: subprocess.CalledProcessError, recorder: _Recorder) -> dict[str, object]:
    said = recorder.said
    overflows = _OVERFLOW.findall(said)
    if overflows:
        buffer, needed, there = overflows[-1]
        tried = _RETRIED.findall(said)
        return {
            "verdict": "overflows",
            "stage": _STAGES[stage],
            "buffer": buffer,
            "needed": int(needed),
            "there": int(there),
            "notes": tried,
        }
    if error.returncode < 0 or "Stack dump" in said or "PLEASE submit a bug report" in said:
        how = signal.Signals(-error.returncode).name if error.returncode < 0 else "a stack dump"
        if error.returncode in (-signal.SIGKILL, -signal.SIGXCPU):
            return {
                "verdict": "not judged",
                "why": f"{how} ended {Path(error.cmd[0]).name}: it reached its limits or the machine's",
            }
        return {
            "verdict": "crashed",
            "stage": _STAGES[stage],
            "why": f"{Path(error.cmd[0]).name} ended by {how}{_first_error(said)}",
        }
    if "std::bad_alloc" in said or "out of memory" in said.lower():
        return {"verdict": "not judged", "why": f"{Path(error.cmd[0]).name} had too little memory"}
    return {
        "verdict": "refused",
        "stage": _STAGES[stage],
        "why": _short(_first_error(said, "") or f"status {error.returncode}"),
    }


def _first_error(said: str, before: str = ": ") -> str:
    """Return the first line of a program's output, from `before` on, that names an error, or an empty string if there
    is none."""
    lines = [re.sub(r"^(loc\(.*?\): )*", "", each).strip() for each in said.splitlines()]
    wrong = [each for each in lines if re.search(r"error: |Assertion|\[ERROR\]|LLVM ERROR|UNREACHABLE", each)]
    vague = ("Failed to run", "Executing:", "failed to run", "External hivmc")
    chosen = next((each for each in wrong if not any(word in each for word in vague)), wrong[0] if wrong else "")
    return before + _short(re.sub(r"^.*?error: ", "", chosen)) if chosen else ""


def _refused(kernel: guessing.Kernel, error: BaseException) -> dict[str, object]:
    """Return the verdict for an error of the front end, with the error's message and the location in the source."""
    strange = [name for value, _ in kernel.used_global_vals.values() for name in strangers_in(value)]
    inner, cause = error, error
    while cause is not None:
        if getattr(cause, "node", None) is not None:
            inner = cause
        cause = cause.__cause__  # type: ignore[assignment]
    text = str(getattr(inner, "error_message", "") or "").strip() or _last_line(error)
    if strange and (any(re.split(r"[. ]", name)[-1] in text for name in strange) or "global variable" in text):
        return {"verdict": "not judged", "why": f"it needs {strange[0]}, which is not available"}
    found = {"verdict": "refused", "stage": "front end", "why": _short(text)}
    where = _where(kernel, inner)
    return {**found, **where} if where else found


def _missing_attribute(kernel: guessing.Kernel, error: BaseException) -> dict[str, object]:
    """Return the source location that uses the attribute named in an AttributeError, or an empty string if it is not
    found."""
    name = getattr(error, "name", None)
    for function in functions_reached(kernel):
        for node in ast.walk(ast.parse(function.src)):
            if isinstance(error, AttributeError) and isinstance(node, ast.Attribute) and node.attr == name:
                return _line(function, node.lineno)
    return {}


def _last_line(error: BaseException) -> str:
    lines = [each for each in str(error).splitlines() if each.strip(" ^")]
    return f"{type(error).__name__}: {lines[-1].strip() if lines else ''}"


def _where(kernel: guessing.Kernel, error: BaseException) -> dict[str, object]:
    node, source = getattr(error, "node", None), getattr(error, "src", None)
    if node is None or not hasattr(node, "lineno"):
        return {}
    for function in functions_reached(kernel):
        if function.src == source:
            return _line(function, node.lineno)
    return {}


def _line(function: guessing.Kernel, number: int) -> dict[str, object]:
    """Convert a line number within a function to a line of the function's file. Triton counts from the `def`."""
    code = function.fn.__code__
    lines = Path(code.co_filename).read_text(errors="replace").splitlines()
    start = next(n for n in range(code.co_firstlineno - 1, len(lines)) if re.match(r"\s*def\s", lines[n]))
    return {"file": code.co_filename, "line": start + number, "text": lines[start + number - 1].strip()[:200]}


def functions_reached(kernel: guessing.Kernel, seen: set[int] | None = None) -> Iterator[guessing.Kernel]:
    """Yield a kernel and all functions that it may call."""
    seen = set() if seen is None else seen
    if id(kernel) in seen:
        return
    seen.add(id(kernel))
    yield kernel
    for name in kernel.fn.__code__.co_names:
        other: guessing.Kernel | None = kernel.fn.__globals__.get(name)
        if other is not None and isinstance(getattr(other, "src", None), str) and hasattr(other, "fn"):
            yield from functions_reached(other, seen)


def _short(text: str) -> str:
    return " ".join(text.split())[:_MOST_TEXT]


def encoded(value: object) -> object:
    """Return the JSON representation of a constant. Raise ValueError if JSON cannot represent the constant."""
    tl = importlib.import_module("triton.language")
    if isinstance(value, tl.constexpr):
        return encoded(value.value)
    if isinstance(value, tl.dtype):
        return {"dtype": value.name}
    if isinstance(value, (list, tuple)):
        return {"tuple": [encoded(each) for each in value]}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise ValueError(f"{type(value).__name__} {value!r}"[:200])


def decoded(value: object) -> object:
    """Return the constant from the JSON representation that `encoded` created."""
    if isinstance(value, dict):
        tl = importlib.import_module("triton.language")
        return tl.dtype(value["dtype"]) if "dtype" in value else tuple(decoded(each) for each in value["tuple"])
    return value

"""Compiles each kernel in a separate process in a sandbox, and caches the verdicts."""

from __future__ import annotations

import contextlib
import dataclasses
import fnmatch
import hashlib
import json
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from verl_npu import progress
from verl_npu.language import gettext as _

from ..places import put
from ..sandbox import Limits, Sandbox, ask, check_possible
from . import targets
from .targets import Target
from .toolchain import Soc, Toolchain, checked, home
from .verdict import Arguments, Judged, Kernel, Origin, Outcome, Stage, Verdict

_CACHE_FORMAT = 2
_FILES_AT_ONCE = 24
_KERNELS_AT_ONCE = 4
_MEMORY = 8 << 30
_READ_SECONDS = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The options for judging kernels."""

    toolchain: Toolchain
    soc: Soc
    seconds: float = 120.0
    """The compiler's time limit, in seconds, for one kernel with one set of arguments."""
    configurations: int = 4
    """The maximum number of configurations of each kernel to try. The search ends at the first configuration that
    compiles."""
    at_once: int = 1
    unconfined: bool = False
    fit: int = 0
    """The maximum number of block sizes to compile for an overflowing kernel, to find some that fit."""
    fresh: bool = False
    """Whether to ignore cached verdicts and compile again."""
    ended: threading.Event = field(default_factory=threading.Event)
    """Set when nothing is waiting for the verdicts anymore."""

    def go_on(self) -> None:
        """Raise CancelledError if nothing is waiting for the verdicts anymore."""
        if self.ended.is_set():
            raise CancelledError


@dataclass(frozen=True, slots=True)
class Read:
    """The kernels that were found in some files. The files that could not be read are listed with the reason for
    each."""

    kernels: tuple[Kernel, ...]
    unread: Mapping[str, str]


def read(target: Target, request: Request) -> Read:
    """Return the kernels of a target, with arguments guessed from their source.

    Raises:
        SandboxError: a sandbox cannot be created on this machine.
    """
    check_possible(request.unconfined)
    found: list[Mapping[str, object]] = []
    unread: dict[str, str] = {}
    files = target.files
    with progress.step(_("reading kernels"), total=len(files), unit=_("files")) as step:
        for first in range(0, len(files), _FILES_AT_ONCE):
            part = files[first : first + _FILES_AT_ONCE]
            answer = _ask(target, request, {"task": "read", "files": [str(each) for each in part]}, _READ_SECONDS)
            if "wrong" in answer and len(part) > 1:
                # A file that crashes the reader must not hide the others.
                answers = [
                    _ask(target, request, {"task": "read", "files": [str(each)]}, _READ_SECONDS) for each in part
                ]
            else:
                answers = [answer]
            for each, of in zip(answers, part if len(answers) > 1 else [part[0]], strict=True):
                if "wrong" in each:
                    unread[str(of)] = str(each["wrong"])
                found += _objects(each.get("kernels"))
                unread |= {str(one.get("file")): str(one.get("why")) for one in _objects(each.get("unread"))}
            step.done = first + len(part)
    # A kernel that another file's kernel calls and that nobody launches is part of that kernel.
    called = {tuple(map(str, place)) for one in found for place in _lists(one.get("calls"))}
    own = [one for one in found if one.get("launched") or (str(one.get("file")), str(one.get("name"))) not in called]
    return Read(tuple(map(kernel_of, own)), unread)


def chosen(kernels: Iterable[Kernel], patterns: Sequence[str]) -> list[Kernel]:
    """Return the kernels whose function name, or full name with the module, matches a pattern. Without patterns,
    return all kernels."""
    return [
        each
        for each in kernels
        if not patterns or any(fnmatch.fnmatch(each.name, p) or fnmatch.fnmatch(each.id, p) for p in patterns)
    ]


def judge(target: Target, kernels: Sequence[Kernel], request: Request) -> list[Judged]:
    """Return the verdict on each kernel, in the same order.

    Raises:
        SandboxError: a sandbox cannot be created on this machine.
    """
    check_possible(request.unconfined)
    done: dict[str, Judged] = {}
    groups = list(_groups([each for each in kernels if each.cases]))
    total = sum(map(len, groups))
    with progress.step(_("compiling for {soc}").format(soc=request.soc.value), total=total, unit=_("kernels")) as step:

        def finish(group: Sequence[Kernel]) -> None:
            for each in _judge_group(target, group, request):
                done[_key_of(each.kernel)] = each
                step.done = len(done)
                step.detail = each.kernel.name

        # Threads only wait for the compiler.
        with ThreadPoolExecutor(request.at_once) as pool:
            try:
                for _unused in pool.map(finish, groups):
                    pass
            except BaseException:
                # Only the main thread sees Ctrl-C; without this, leaving the pool would wait for running compilers.
                request.ended.set()
                raise
    return [done.get(_key_of(each), Judged(kernel=each)) for each in kernels]


def _key_of(kernel: Kernel) -> str:
    return f"{kernel.file}:{kernel.line}:{kernel.name}:{id(kernel)}"


def _groups(kernels: Sequence[Kernel]) -> Iterator[list[Kernel]]:
    """Yield small groups of kernels from the same file. The file is read once for each group."""
    by_file: dict[str, list[Kernel]] = {}
    for each in kernels:
        by_file.setdefault(each.file, []).append(each)
    for group in by_file.values():
        for first in range(0, len(group), _KERNELS_AT_ONCE):
            yield group[first : first + _KERNELS_AT_ONCE]


def _judge_group(target: Target, kernels: Sequence[Kernel], request: Request) -> Iterator[Judged]:
    """Judge kernels of one file: first compile the first configuration of each, then the next configuration of each
    that failed."""
    tried: dict[int, list[tuple[Arguments, Outcome]]] = {index: [] for index in range(len(kernels))}
    for number in range(request.configurations):
        left = [
            index
            for index, kernel in enumerate(kernels)
            if number < len(kernel.cases)
            and not any(outcome.verdict is Verdict.COMPILES for _unused, outcome in tried[index])
        ]
        jobs = [(kernels[index], kernels[index].cases[number]) for index in left]
        for index, (_unused, case), outcome in zip(left, jobs, outcomes(target, jobs, request), strict=True):
            tried[index].append((case, outcome))
    for index, kernel in enumerate(kernels):
        yield Judged(kernel=kernel, tried=tuple(tried[index]))


def outcomes(target: Target, jobs: Sequence[tuple[Kernel, Arguments]], request: Request) -> list[Outcome]:
    """Return the outcome of compiling each kernel in `jobs`. All kernels must be in one file. Cached outcomes are used
    where possible."""
    keys = [_kept_as(kernel, case, request) for kernel, case in jobs]
    found = [None if request.fresh else _kept(key) for key in keys]
    missing = [index for index, outcome in enumerate(found) if outcome is None]
    if missing:
        asked = [jobs[index] for index in missing]
        for index, outcome in zip(missing, _compiled(target, asked, request), strict=True):
            found[index] = outcome
            if outcome.verdict is not Verdict.NOT_JUDGED:
                _keep(keys[index], outcome)
    return [outcome for outcome in found if outcome is not None]


def _compiled(target: Target, jobs: Sequence[tuple[Kernel, Arguments]], request: Request) -> list[Outcome]:
    began = time.monotonic()
    limits = {"seconds": request.seconds, "memory": _MEMORY}
    question = {
        "task": "compile",
        "file": jobs[0][0].file,
        "jobs": [{"name": kernel.name, "case": _case(case)} for kernel, case in jobs],
        "limits": limits,
    }
    answer = _ask(target, request, question, len(jobs) * request.seconds + 60)
    results = _objects(answer.get("results"))
    if "wrong" in answer or len(results) != len(jobs):
        if len(jobs) > 1:
            return [outcome for job in jobs for outcome in _compiled(target, [job], request)]
        return [Outcome(verdict=Verdict.NOT_JUDGED, why=str(answer.get("wrong", "the compiler gave no answer")))]
    seconds = (time.monotonic() - began) / len(jobs)
    return [dataclasses.replace(_outcome(each), seconds=seconds) for each in results]


def _ask(target: Target, request: Request, question: Mapping[str, object], seconds: float) -> Mapping[str, object]:
    """Send a request to the compiler process, and return the response. If the process failed, the response has the
    key `wrong`."""
    request.go_on()
    chain = request.toolchain
    own = Path(__file__).resolve().parents[1]
    whole = {**question, "root": str(target.root), "soc": dict(request.soc.question), "version": chain.pair.back}
    with tempfile.TemporaryDirectory(prefix="verl-npu-") as made:
        variables, sandbox = chain.environment(), None
        if request.unconfined:
            variables |= {"HOME": made, "TRITON_CACHE_DIR": str(Path(made, "triton")), "TMPDIR": made}
        else:
            seen = (chain.folder, own, *targets.tops(target), *map(Path, chain.python.prefixes))
            sandbox = Sandbox(read_only=tuple(dict.fromkeys(each.resolve() for each in seen if each.exists())))
        limits = Limits(seconds, processes=64, memory=_MEMORY, file=1 << 30)
        log = Path(made, "log")
        ended, answer = ask(sandbox, chain.command(), Path("/tmp"), variables, limits, log, whole, request.go_on)
        said = ended.output.decode(errors="replace").strip().splitlines()
    if ended.limit:
        return {"wrong": ended.limit}
    if ended.status or answer.wrong:
        last = (said or [answer.wrong or str(ended.status)])[-1][:300]
        return {"wrong": f"the program that reads and compiles kernels failed: {last}"}
    return answer.content


# The response is not trusted: the kernel's own code may have written it.


def _objects(content: object) -> list[Mapping[str, object]]:
    return [each for each in content if isinstance(each, dict)] if isinstance(content, list) else []


def _lists(content: object) -> list[list[object]]:
    return [each for each in content if isinstance(each, list)] if isinstance(content, list) else []


def kernel_of(content: Mapping[str, object]) -> Kernel:
    """Create a kernel from untrusted JSON."""
    cases = _objects(content.get("cases"))
    return Kernel(
        name=str(content.get("name", "")),
        module=str(content.get("module", "")),
        file=str(content.get("file", "")),
        line=_number(content.get("line")),
        cases=tuple(_arguments(each) for each in cases),
        source=str(content.get("source", "")),
        why=str(content.get("why", ""))[:500],
    )


def _arguments(content: Mapping[str, object]) -> Arguments:
    return Arguments(
        signature=_texts(content.get("signature")),
        constants=_mapping(content.get("constants")),
        divisible=_names(content.get("divisible")),
        ones=_names(content.get("ones")),
        options=_mapping(content.get("options")),
        origin=Origin.GUESSED if content.get("guessed", True) else Origin.CAPTURED,
        label=str(content.get("label", "")),
        unsure=_names(content.get("unsure")),
    )


def _outcome(content: Mapping[str, object]) -> Outcome:
    verdicts = {each.value: each for each in Verdict}
    stages = {each.value: each for each in Stage}
    return Outcome(
        verdict=verdicts.get(str(content.get("verdict")), Verdict.NOT_JUDGED),
        stage=stages.get(str(content.get("stage", ""))),
        why=str(content.get("why", ""))[:2000],
        buffer=str(content.get("buffer", ""))[:20],
        needed=_number(content.get("needed")),
        there=_number(content.get("there")),
        file=str(content.get("file", "")),
        line=_number(content.get("line")),
        text=str(content.get("text", ""))[:200],
        notes=_names(content.get("notes")),
        signature=_texts(content.get("signature")),
    )


def _number(content: object) -> int:
    return content if isinstance(content, int) and not isinstance(content, bool) else 0


def _mapping(content: object) -> dict[str, object]:
    return {str(key): value for key, value in content.items()} if isinstance(content, dict) else {}


def _texts(content: object) -> dict[str, str]:
    return {key: str(value) for key, value in _mapping(content).items()}


def _names(content: object) -> tuple[str, ...]:
    return tuple(map(str, content)) if isinstance(content, (list, tuple)) else ()


# The cache of verdicts.


def _case(case: Arguments) -> dict[str, object]:
    return {
        "signature": dict(case.signature),
        "constants": dict(case.constants),
        "divisible": sorted(case.divisible),
        "ones": sorted(case.ones),
        "options": dict(case.options),
        "guessed": case.origin is Origin.GUESSED,
        "unsure": sorted(case.unsure),
    }


def _kept_as(kernel: Kernel, case: Arguments, request: Request) -> str:
    whole = [
        _CACHE_FORMAT,
        kernel.source,
        kernel.file,
        kernel.name,
        _case(case),
        dict(request.soc.question),
        request.toolchain.id,
    ]
    return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()


def _path(key: str) -> Path:
    return home() / "verdicts" / key[:2] / f"{key}.json"


def _kept(key: str) -> Outcome | None:
    try:
        content = json.loads(_path(key).read_text())
    except (OSError, ValueError):
        return None
    return dataclasses.replace(_outcome(content), cached=True) if isinstance(content, dict) else None


def _keep(key: str, outcome: Outcome) -> None:
    path = _path(key)
    content = dataclasses.asdict(outcome) | {
        "verdict": outcome.verdict.value,
        "stage": outcome.stage.value if outcome.stage else "",
    }
    # If the disk is full, only the next run loses time.
    with contextlib.suppress(OSError):
        checked(home())
        path.parent.mkdir(parents=True, exist_ok=True)
        put(path, json.dumps(content).encode())

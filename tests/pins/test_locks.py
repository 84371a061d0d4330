"""The files checked in under patches/ describe the pins' sources correctly, and every patch fits its pins.

The tests read the sources by other means than the code that writes the files: a fault in that code would otherwise be
in both and never be seen.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import json
import re
import textwrap
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import verl_npu
from verl_npu.cli import main
from verl_npu.features import UPSTREAMS, load, locks_folder
from verl_npu.maintain.__main__ import main as maintain
from verl_npu.pins import pins
from verl_npu.registry.judge.lock import read_locks
from verl_npu.registry.patch import Action, Patch
from verl_npu.registry.state import Standing

LOCKS = [(upstream.name, lock.pin) for upstream in UPSTREAMS for lock in read_locks(locks_folder(), upstream.name)]
VERL_PINS = [pin for upstream, pin in LOCKS if upstream == "verl"]
DIFFS = sorted(locks_folder().glob("*/*/*.diff"))
PATCHES = {patch.id: patch for feature in load() for patch in feature}
_DAILY = {
    ("verl", "v0.6.1"),
    ("verl", "v0.9.1"),
    ("transformers", "4.57.6"),
    *(lock for lock in LOCKS if lock[0] == "hydra"),
}
NIGHTLY = pytest.mark.nightly("patches", "verl_npu/registry", "verl_npu/features")
HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
PROJECT = Path(verl_npu.__file__).resolve().parents[1]

Sources = Callable[[str, str], list[Path]]


def run(program: click.Command, *arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(program, arguments, catch_exceptions=False)
    return result.exit_code, result.output


def lock_of(upstream: str, pin: str) -> dict[str, dict[str, str]]:
    return json.loads((locks_folder() / upstream / pin / "lock.json").read_text())


def file_of(source: Path, module: str) -> bytes | None:
    """Return the file of a module, or one of the configuration, in a checkout or a wheel."""
    stem = module.replace(".", "/")
    for name in (module,) if "/" in module else (f"{stem}/__init__.py", f"{stem}.py"):
        if source.is_dir():
            if (source / name).is_file():
                return (source / name).read_bytes()
        elif name in wheel(source).namelist():
            return wheel(source).read(name)
    return None


@cache
def wheel(path: Path) -> zipfile.ZipFile:
    """Open a wheel; its list of files is read once."""
    return zipfile.ZipFile(path)


def holds(source: Path, package: str) -> bool:
    """Return whether a checkout or a wheel has a top-level package. Recipes are in checkouts, and in no wheel."""
    if source.is_dir():
        return any((source / folder / package).is_dir() for folder in (".", "src"))
    return any(name.startswith(f"{package}/") for name in wheel(source).namelist())


def part_of(lock: dict[str, dict[str, str]], source: Path) -> dict[str, object]:
    """Return the part of a lock that `source` can show."""

    def shown(section: str, key: str) -> bool:
        subject = str(PATCHES[key].target) if section == "patches" else key
        # A question is named by its kind, and then by its subject.
        subject = key.partition("=")[2] if section == "answers" else subject
        return holds(source, re.split(r"[./: ]", subject)[0])

    shared = {
        section: {key: value for key, value in content.items() if shown(section, key)}
        if isinstance(content, dict)
        else content
        for section, content in lock.items()
    }
    sites = {
        target: {site: how for site, how in found.items() if shown("", site)}
        for target, found in shared["sites"].items()
    }
    return {**shared, "sites": {target: found for target, found in sites.items() if found}}


def definition(text: str, qualname: str) -> list[str]:
    """Return the lines of the function or class of that name, without decorators and indentation."""
    node: ast.AST = ast.parse(text)
    for name in qualname.split("."):
        kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        (node,) = (child for child in ast.walk(node) if isinstance(child, kinds) and child.name == name)
    lines = text.splitlines()[node.lineno - 1 : node.end_lineno]
    return textwrap.dedent("\n".join(lines)).splitlines()


@dataclass(frozen=True)
class Replacement:
    """One section of a diff."""

    target: str
    implementation: str
    lines: list[str]

    def applied_to(self, old: list[str]) -> list[str]:
        """Apply the section to `old`; fail if a line that it removes is not there."""
        new, at, rest = [], 0, iter(self.lines)
        for header in rest:
            match = HUNK.fullmatch(header)
            assert match, f"not the beginning of a hunk: {header!r}"
            first, taken, given = int(match[1]), int(match[2] or 1), int(match[4] or 1)
            # A hunk that removes nothing stands after its line, any other begins with it.
            start = first - 1 if taken else first
            gone = [next(rest) for _ in range(taken)]
            assert gone == [f"-{line}" for line in old[start : start + taken]]
            come = [next(rest) for _ in range(given)]
            assert all(line.startswith("+") for line in come)
            new += [*old[at:start], *(line[1:] for line in come)]
            at = start + taken
        return [*new, *old[at:]]


def replacements(path: Path) -> Iterator[Replacement]:
    sections = re.split(r"^--- (?=\S+:\S+\n\+\+\+ )", path.read_text(), flags=re.MULTILINE)[1:]
    for section in sections:
        target, implementation, *lines = section.rstrip("\n").splitlines()
        match = re.fullmatch(r"\+\+\+ (\S+) \(replace\)", implementation)
        assert match, f"only what is replaced belongs here: {implementation}"
        yield Replacement(target, match[1], lines)


def test_every_release_from_v061_on_is_a_pin_and_three_commits_are() -> None:
    assert sorted(VERL_PINS) == sorted(pins())


@pytest.mark.parametrize("path", DIFFS, ids=lambda path: "-".join(path.parts[-3:]))
def test_a_diff_makes_our_code_of_upstreams(path: Path, sources: Sources) -> None:
    upstream, pin = path.parts[-3:-1]
    here = sources(upstream, pin)[0]
    for section in replacements(path):
        module, _, qualname = section.target.partition(":")
        if not holds(here, module.partition(".")[0]):
            continue
        theirs = file_of(here, module)
        assert theirs is not None, f"{section.target} is not in {upstream} {pin}"
        module, _, name = section.implementation.partition(":")
        ours = (PROJECT / f"{module.replace('.', '/')}.py").read_text()
        assert section.applied_to(definition(theirs.decode(), qualname)) == definition(ours, name), section.target


@pytest.mark.parametrize(("upstream", "pin"), LOCKS)
def test_there_is_a_diff_for_what_is_replaced_and_for_nothing_else(upstream: str, pin: str) -> None:
    folder = locks_folder() / upstream / pin
    shown = sorted(section.target for path in folder.glob("*.diff") for section in replacements(path))
    needed = [PATCHES[id] for id, standing in lock_of(upstream, pin)["patches"].items() if standing == "needed"]
    assert shown == sorted(str(patch.target) for patch in needed if patch.action is Action.REPLACE)


@pytest.mark.parametrize(("upstream", "pin"), LOCKS)
def test_a_lock_has_the_hash_of_each_file(upstream: str, pin: str, sources: Sources) -> None:
    for here in sources(upstream, pin):
        for module, digest in part_of(lock_of(upstream, pin), here)["files"].items():
            data = file_of(here, module)
            assert digest == ("" if data is None else hashlib.sha256(data).hexdigest()), module


@pytest.mark.parametrize(("upstream", "pin"), LOCKS)
def test_the_target_of_a_needed_patch_is_in_the_source_unless_it_is_added(
    upstream: str, pin: str, sources: Sources
) -> None:
    here = sources(upstream, pin)[0]
    lock = part_of(lock_of(upstream, pin), here)
    for patch in (PATCHES[id] for id, standing in lock["patches"].items() if standing == "needed"):
        data = file_of(here, patch.target.module)
        assert data is not None, f"{patch.id}: {patch.target.module} is not in {upstream} {pin}"
        # As a definition, an assignment, or an import; below a class it is indented.
        name = re.escape(patch.target.name)
        there = re.search(
            rf"(def|class) {name}\b|^\s*{name}\b.*=|import\b[^#]*\b{name}\b", data.decode(), re.MULTILINE
        )
        assert there or patch.action is Action.ADD, patch.id


@pytest.mark.parametrize(
    ("upstream", "pin"),
    [pytest.param(*lock, marks=() if lock in _DAILY else NIGHTLY) for lock in LOCKS],
)
def test_no_lock_is_out_of_date(upstream: str, pin: str, sources: Sources, tmp_path: Path) -> None:
    # This compares the generator with itself, so it does not show what is right: it finds a patch that was changed and
    # not locked again, or that is declared needed at a pin whose source retires it.
    checked_in = lock_of(upstream, pin)
    for here in sources(upstream, pin):
        folder = tmp_path / here.name
        status, output = run(
            maintain,
            *("lock", "--upstream", upstream, "--source", str(here), "--pin", pin),
            *("--revision", checked_in["revision"], "--output", str(folder)),
        )
        assert status == 0, output
        made = json.loads((folder / upstream / pin / "lock.json").read_text())
        expected = part_of(checked_in, here)
        # The verl names that recipes use are recorded only where there are recipes.
        expected["files"] = {name: digest for name, digest in expected["files"].items() if name in made["files"]}
        assert part_of(made, here) == expected, here


@pytest.mark.parametrize("pin", pins())
def test_check_is_green_and_exact_at_every_pin(pin: str, sources: Sources) -> None:
    for here in sources("verl", pin):
        status, output = run(main, "check", "--source", str(here), "--json")
        content = json.loads(output)
        assert content["revision"] == {"nearest_pin": pin, "exact": True, "differs": []}, here
        assert status == 0
        assert {feature["name"] for feature in content["features"]} == {feature.name for feature in load()}


def test_every_patch_is_needed_somewhere() -> None:
    standings = [lock.patches for upstream in UPSTREAMS for lock in read_locks(locks_folder(), upstream.name)]
    for patch in PATCHES.values():
        assert any(s.get(patch.id) == "needed" for s in standings), f"{patch.id} can go: no pin needs it"


@pytest.mark.parametrize("patch", [p for p in PATCHES.values() if p.action is Action.WRAP], ids=lambda patch: patch.id)
def test_a_wrapper_can_be_called_as_its_target_is_and_passes_on_what_it_has_no_parameter_for(patch: Patch) -> None:
    locks = [lock for upstream in UPSTREAMS for lock in read_locks(locks_folder(), upstream.name)]
    needed = [lock.targets[patch.target] for lock in locks if lock.patches.get(patch.id) is Standing.NEEDED]
    assert needed
    parameters = list(inspect.signature(patch.implementation).parameters.values())[1:]
    own = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    takes_all = any(p.kind is p.VAR_POSITIONAL for p in parameters) and any(
        p.kind is p.VAR_KEYWORD for p in parameters
    )
    for text in {text for record in needed for text in record.signature.split(" | ") if text}:
        node = ast.parse(f"def _{text}: ...").body[0]
        assert isinstance(node, ast.FunctionDef)
        theirs = [*node.args.posonlyargs, *node.args.args]
        given = len(theirs) - len(node.args.defaults)
        # A wrapper must not require an argument that callers may omit, and required ones keep their places.
        required = [p for p in own if p.default is p.empty]
        assert len(required) <= given or node.args.vararg is not None, text
        assert takes_all or len(own) >= min(given, len(theirs)), text
        names = {p.name for p in own[1:]} & {argument.arg for argument in theirs}
        assert [p.name for p in own if p.name in names] == [a.arg for a in theirs if a.arg in names], text

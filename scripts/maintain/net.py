"""The safety net under the registry: a record of all verdicts of this project, to compare before and after a change.

    VERL_NPU_UPSTREAMS=FOLDER python scripts/maintain/net.py record OUT [--only pins,edited,history,…]
        [--repository CLONE] [--sample] [--line] [--jobs 2] [--commit]
    python scripts/maintain/net.py compare BEFORE AFTER [--reasons] [--all]
    python scripts/maintain/net.py figures OUT

`record` writes OUT/<section>.json, and ends with status 1 if the states do not have the hashes in
`tests/pins/net.json`. `--commit` writes the hashes. The history needs a clone of verl. `--sample` takes some revisions
and one pin, and `--line` takes each commit of the main line. `compare` lists the verdicts that moved, and ends with
status 1 if any did.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import re
import sys
import tempfile
import time
import zipfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

# Neither the tests nor the scripts are an installed package.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.append(str(Path(__file__).resolve().parent))
import history
import sources

from tests.pins import by_hand, live
from tests.pins.losses import FEATURES, LOCKS, Pin, pin_at
from tests.pins.mutants import Mutant, changes, harmless

# Everything that this program uses of the registry.
from verl_npu.features import UPSTREAMS
from verl_npu.registry.judge.verdict import Verdict, judge
from verl_npu.registry.source.tree import SourceTree

HASHES = Path(__file__).resolve().parents[2] / "tests" / "pins" / "net.json"
PINS = [lock.pin for lock in LOCKS["verl"]]
VERL = UPSTREAMS[0].packages
SAMPLE_PIN, SAMPLE_STEP = "v0.7.0", 20
TRANSFORMERS_BESIDE, VERL_BESIDE = "4.57.6", "v0.9.1"
_PATCH_KEY = re.compile(r"(?:(?P<what>.*), )?(?P<patch>[a-z_]+\.\w+)")
NOT_ASKED = ("not asked", "")
_MOVED = ", patches that moved: "

Said = tuple[str, str]
"""A state, or another outcome, and the reason."""
Group = Mapping[str, Said]
"""The verdicts at one pin or revision, by patch or by edit. Keys with the same text before a colon are counted
together."""
One = TypeVar("One")


def at_pin(pin: str) -> Group:
    """Judge verl at a pin."""
    return _judged(_verl(pin).with_packages(_transformers()))


def at_edited_pin(name: str) -> Group:
    """Judge an upstream at a pin with a comment added to each file, so that no lock matches by its hash."""
    upstream, _, pin = name.rpartition(" ")
    packages = next(each.packages for each in UPSTREAMS if each.name == (upstream or "verl"))
    source = sources.all_of(upstream or "verl", pin)[0]
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        wheel = stack.enter_context(zipfile.ZipFile(source)) if source.is_file() else None
        for path in wheel.namelist() if wheel else (str(path.relative_to(source)) for path in source.rglob("*.*")):
            if path.endswith((".py", ".yaml")) and {*Path(path).parts[:2]} & {*packages}:
                copy = Path(folder, path)
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.write_bytes((wheel.read(path) if wheel else (source / path).read_bytes()) + b"\n# a line more\n")
        tree = SourceTree.at(Path(folder), packages)
        return _judged(_verl(VERL_BESIDE).with_packages(tree) if upstream else tree.with_packages(_transformers()))


def at_revision(past: history.Past, revision: str) -> Group:
    """Judge a commit of verl."""
    return _judged(past.tree(revision).with_packages(_transformers()))


def of_hand(name: str) -> Group:
    """Judge the edits by hand of a pin: does each have the expected verdict, and which other verdicts moved?"""
    pin, said = _pin(name), {}
    for edit in _ticking(f"hand, {name}", [edit for edit in by_hand.EDITS if edit.pin == name]):
        mutant = edit.of(pin.upstream)
        verdicts = pin.judged(mutant).verdicts
        fits = all(verdicts[patch].state in edit.states for patch in edit.patches)
        said |= _moved(pin, mutant, f"{edit.name}, {edit.path}", "fits" if fits else "does not fit", verdicts)
    return said


def of_live(name: str) -> Group:
    """Ask a process with a pin's verl how it judges each replacement of each target."""
    with tempfile.TemporaryDirectory() as folder:
        tree = sources.all_of("verl", name)[0]
        if tree.is_file():
            zipfile.ZipFile(tree).extractall(folder)
            tree = Path(folder)
        table = live.at(tree)
    said: dict[str, Said] = {f"not imported: {target}": ("not asked", why) for target, why in table.unknown.items()}
    for one in table.said:
        reason = re.sub(r"0x[0-9a-f]+", "0x…", one.answer.replace(str(tree), "…"))
        key = f"{one.way.replace(':', ',')} ({one.make}): {one.target}"
        said[key] = ("accepted" if reason == "accepted" else "refused", reason)
    return said


def of_mutants(name: str) -> Group:
    """Judge the mutants of a pin: the outcome of each, and the patches whose state differs from the pin's."""
    pin, said = _pin(name), {}
    for mutant in _ticking(f"mutants, {name}", pin.losses()):
        after = pin.judged(mutant)
        outcome, wrong = pin.outcome(mutant, after)
        said |= _moved(pin, mutant, mutant.subject, outcome.value, after.verdicts, "; ".join(wrong))
    more = [*changes(pin.upstream, sorted(pin.verified)), *harmless(pin.upstream, pin.modules)]
    for mutant in _ticking(f"more mutants, {name}", more):
        said |= _moved(pin, mutant, mutant.subject, "judged", pin.judged(mutant).verdicts)
    return said


def of_edits(name: str) -> Group:
    """Judge each generated edit of each target at a pin, for the patch of that target."""
    pin = _pin(name)
    return {
        f"{effect.value}: {mutant.subject} {_digest(mutant)}, {patch.id}": _said(pin.verdict(patch, mutant))
        for _, effect, patch, mutant in _ticking(f"edits, {name}", pin.of_edits())
    }


SECTIONS: Mapping[str, Callable[..., Group]] = {
    "pins": at_pin,
    "edited": at_edited_pin,
    "history": at_revision,
    "hand": of_hand,
    "live": of_live,
    "mutants": of_mutants,
    "edits": of_edits,
}


def _judged(tree: SourceTree) -> Group:
    return {id: _said(verdict) for id, verdict in judge(FEATURES, UPSTREAMS, tree, LOCKS)[1].items()}


def _said(verdict: Verdict) -> Said:
    return "drifted in words only" if verdict.only_wording else verdict.state.value, verdict.reason


def _moved(
    pin: Pin, mutant: Mutant, name: str, outcome: str, verdicts: Mapping[str, Verdict], reason: str = ""
) -> Iterator[tuple[str, Said]]:
    kind, name = mutant.kind.value, f"{name} {_digest(mutant)}"
    yield f"{kind}: {name}", (outcome, reason)
    for id, verdict in verdicts.items():
        if verdict.state is not pin.before.verdicts[id].state:
            yield f"{kind}{_MOVED}{name}, {id}", _said(verdict)


def _digest(mutant: Mutant) -> str:
    """Return a hash of the changed files, so that only the same edits are compared."""
    return hashlib.sha256(repr(sorted(mutant.files.items())).encode()).hexdigest()[:6]


@cache
def _transformers() -> SourceTree:
    return SourceTree.at(sources.find("transformers", TRANSFORMERS_BESIDE), ("transformers",))


def _verl(pin: str) -> SourceTree:
    return SourceTree.at(sources.all_of("verl", pin)[0], VERL)


def _pin(name: str) -> Pin:
    return pin_at(name, sources.all_of("verl", name)[0], _transformers())


def _ticking(what: str, every: Iterable[One]) -> Iterator[One]:
    """Yield the items, and print every half minute how many are done."""
    told = time.monotonic()
    for n, one in enumerate(every, 1):
        yield one
        if time.monotonic() - told > 30:
            told = time.monotonic()
            print(f"{what}: {n}", file=sys.stderr, flush=True)


def record(asked: argparse.Namespace) -> int:
    """Judge, write a file for each section, and compare with the hashes; return 1 if one differs."""
    asked.out.mkdir(parents=True, exist_ok=True)
    status = 0
    for section in asked.only:
        start, known = time.monotonic(), hashes().get(section, {})
        groups = groups_of(section, asked, known)
        # Consecutive revisions share most files, so one process judges many of them.
        size = -(-len(groups) // asked.jobs) if section == "history" else 1
        found: dict[str, Group] = {}
        with ProcessPoolExecutor(asked.jobs) as pool:
            parts = [groups[at : at + size] for at in range(0, len(groups), size)]
            for done in as_completed([pool.submit(_part, section, part, asked.repository) for part in parts]):
                found |= done.result()
                # Write now, so that nothing is lost if the program is interrupted.
                write(asked.out / f"{section}.json", {group: found[group] for group in groups if group in found})
        made = hashed(found)
        differing = [group for group in made if made[group] != known.get(group)]
        status |= bool(differing) and not asked.commit
        print(f"{section}: {len(found)} in {time.monotonic() - start:.0f} s, {len(differing)} not as in {HASHES.name}")
        print("".join(f"  {group}\n" for group in differing[:10]), end="", flush=True)
        if asked.commit:
            # Read the hashes again, because another section may have been written meanwhile.
            every = hashes() | {section: {**known, **made} if asked.sample else made}
            every = {name: every[name] for name in SECTIONS if name in every}
            every["all"] = {"all": hashlib.sha256(json.dumps(every).encode()).hexdigest()}
            HASHES.write_text(json.dumps(every, indent=1) + "\n")
    return status


def hashes() -> dict[str, dict[str, str]]:
    """Return the committed hashes, by section and by pin or revision."""
    return json.loads(HASHES.read_text()) if HASHES.is_file() else {}


def groups_of(section: str, asked: argparse.Namespace, known: Mapping[str, str]) -> list[str]:
    """Return the pins or revisions of a section; for the history, those that have a hash, or all if none has."""
    if section == "edited":
        return [f"{name} {lock.pin}".removeprefix("verl ") for name, locks in LOCKS.items() for lock in locks]
    if section != "history":
        return [SAMPLE_PIN] if asked.sample and section != "pins" else PINS
    if asked.line or not known:
        line = history.commits(asked.repository, history.FIRST, history.LAST)
        return [history.FIRST[:10], *(commit.name[:10] for commit in line)]
    changing = {new for old, new in pairwise(known) if known[old] != known[new]}
    return [name for n, name in enumerate(known) if not asked.sample or n % SAMPLE_STEP == 0 or name in changing]


def _part(section: str, groups: list[str], repository: Path | None) -> Mapping[str, Group]:
    of = partial(at_revision, history.Past(repository)) if repository and section == "history" else SECTIONS[section]
    return {group: of(group) for group in _ticking(f"{section} from {groups[0]}", groups)}


def hashed(section: Mapping[str, Group]) -> dict[str, str]:
    """Return a hash of each group's states."""
    states = {name: sorted((key, said[0]) for key, said in group.items()) for name, group in section.items()}
    return {name: hashlib.sha256(repr(pairs).encode()).hexdigest()[:12] for name, pairs in states.items()}


def write(path: Path, section: Mapping[str, Group]) -> None:
    """Write a section, with each distinct verdict written only once."""
    words: dict[Said, int] = {}
    groups = {
        name: {key: words.setdefault(said, len(words)) for key, said in group.items()}
        for name, group in section.items()
    }
    path.write_text(json.dumps({"said": list(words), "groups": groups}, separators=(",", ":"), ensure_ascii=False))


def read(path: Path) -> dict[str, Group]:
    """Read a section that `write` wrote; return an empty one if there is no such file."""
    found = json.loads(path.read_text()) if path.is_file() else {"said": [], "groups": {}}
    words = [(state, reason) for state, reason in found["said"]]
    return {name: {key: words[n] for key, n in group.items()} for name, group in found["groups"].items()}


def compare(asked: argparse.Namespace) -> int:
    """Print the verdicts that moved, at the pins and revisions that both records have; return 1 if any did."""
    status = 0
    at_pins = [read(folder / "pins.json") for folder in (asked.before, asked.after)]
    for section in SECTIONS:
        old, new = (read(folder / f"{section}.json") for folder in (asked.before, asked.after))
        both = [group for group in old if group in new]
        moves: dict[Said, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
        count = reworded = 0
        for group in both:
            for key in dict.fromkeys([*old[group], *new[group]]):
                one = _PATCH_KEY.fullmatch(key)
                patch, what = (one["patch"], one["what"]) if one else key.split(": ", 1)
                # A mutant's record has only the patches whose state differs from the pin's.
                as_there = (pins.get(group, {}) if _MOVED in key else {} for pins in at_pins)
                a, b = (
                    said[group].get(key) or there.get(patch, NOT_ASKED)
                    for said, there in zip((old, new), as_there, strict=True)
                )
                count += 1
                reworded += a[0] == b[0] and a[1] != b[1]
                if a[0] != b[0] or (asked.reasons and a[1] != b[1]):
                    ends = (": ".join(a), ": ".join(b)) if asked.reasons else (a[0], b[0])
                    moves[ends][patch].append(f"{what}, at {group}" if what else group)
        moved = sum(len(where) for patches in moves.values() for where in patches.values())
        status |= bool(moved)
        if both:
            print(f"{section}: {moved} of {count} entries moved ({moved / count:.2%}), {reworded} only in the reason")
            print(f"  in {len(both)} pins or revisions, of {len(old)} before and {len(new)} after")
        for (a, b), patches in sorted(moves.items(), key=lambda each: -sum(map(len, each[1].values()))):
            print(f"  {a} -> {b}: {sum(map(len, patches.values()))}")
            for patch, where in sorted(patches.items()):
                shown = where if asked.all or len(where) < 5 else [*where[:3], "… --all lists them …", where[-1]]
                print(f"    {patch}: {len(where)}", *shown, sep=" | ")
    return status


def figures(asked: argparse.Namespace) -> int:
    """Print a table for each section: how often each state occurs, by pin or kind of edit."""
    for section in SECTIONS:
        found = read(asked.out / f"{section}.json")
        counts: Counter[Said] = Counter()
        for name, group in found.items():
            for key, (state, _) in group.items():
                row = key.partition(": ")[0] if ": " in key else "all" if section == "history" else name
                counts[row, state] += 1
                if ": " in key:
                    counts[row, name] += 1
        columns = sorted({column for _, column in counts}, key=lambda column: (column not in found, column))
        if found:
            print(f"\n| {section} | {' | '.join(columns)} |\n|---{'|---' * len(columns)}|")
        for row in dict.fromkeys(row for row, _ in counts):
            print(f"| {row} | {' | '.join(str(counts[row, column]) for column in columns)} |")
    return 0


def main() -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("record")
    one.add_argument("out", type=Path)
    one.add_argument("--only", type=lambda text: text.split(","), default=list(SECTIONS))
    one.add_argument("--repository", type=Path)
    one.add_argument("--jobs", type=int, default=2)
    two = commands.add_parser("compare")
    two.add_argument("before", type=Path)
    two.add_argument("after", type=Path)
    three = commands.add_parser("figures")
    three.add_argument("out", type=Path)
    for command, does, switches in (
        (one, record, ("sample", "line", "commit")),
        (two, compare, ("reasons", "all")),
        (three, figures, ()),
    ):
        command.set_defaults(does=does)
        for switch in switches:
            command.add_argument(f"--{switch}", action="store_true")
    asked = parser.parse_args()
    if asked.does is record and ({*asked.only} - {*SECTIONS} or ("history" in asked.only and not asked.repository)):
        parser.error(f"the sections are {', '.join(SECTIONS)}; history needs --repository")
    try:
        return int(asked.does(asked))
    except (history.GitError, sources.SourceMissing, sources.DownloadFailed) as error:
        print(f"net.py: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())

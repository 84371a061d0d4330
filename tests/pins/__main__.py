"""What the judgement makes of mutants, counted: `VERL_NPU_UPSTREAMS=FOLDER python -m tests.pins [PIN ...]`.

With `--edits`, what it makes of the edits of each target, which are some thousands for each pin. With `--callers`,
what it makes of the edits of who calls a target. With `--live`, what a process of each pin says of what was put over a
target there.
"""

from __future__ import annotations

import sys
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from verl_npu.registry.source.tree import SourceTree

# What the tests share there is no package that is installed.
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from . import live
from .callers import BYPASSING, HARMLESS, CallerEdit, outcome
from .callers import Outcome as Said
from .edits import Effect
from .losses import LOCKS, Outcome, Pin, pin_at, refused
from .mutants import Kind

Counts = Mapping[tuple[str, Kind, Outcome], int]


def main() -> int:
    """Print what came of the mutants, by kind and by pin; status 1 if anything was said silently."""
    from maintain import sources

    counts: Counter[tuple[str, Kind, Outcome]] = Counter()
    silent: list[str] = []
    start = time.monotonic()
    beside = SourceTree.at(sources.find("transformers", "4.57.6"), ("transformers",))
    names = [name for name in sys.argv[1:] if not name.startswith("--")] or [lock.pin for lock in LOCKS["verl"]]
    if "--live" in sys.argv:
        return _live({name: sources.all_of("verl", name)[0] for name in names})
    if "--edits" in sys.argv:
        return _edits(pin_at(name, sources.all_of("verl", name)[0], beside) for name in names)
    if "--callers" in sys.argv:
        return _callers(pin_at(name, sources.all_of("verl", name)[0], beside) for name in names)
    for name in names:
        pin = pin_at(name, sources.all_of("verl", name)[0], beside)
        for mutant in pin.losses():
            outcome, wrong = pin.outcome(mutant)
            counts[name, mutant.kind, outcome] += 1
            silent += wrong
    print("\n".join(table(counts)))
    print(f"\n{counts.total()} mutants in {time.monotonic() - start:.0f} s")
    print("\n".join(silent))
    return int(bool(silent))


def _edits(pins: Iterable[Pin]) -> int:
    """Print what is said of the edits; status 1 if it is wrong of more than one in a hundred."""
    counts: Counter[tuple[Effect, str, str]] = Counter()
    passed: list[str] = []
    for pin in pins:
        for name, effect, patch, mutant in pin.of_edits():
            verdict = pin.verdict(patch, mutant)
            said = "in words only" if verdict.in_words else verdict.state.value
            counts[effect, name, said] += 1
            if refused(verdict) is (effect is Effect.HARMLESS) and effect is not Effect.GUTTED:
                passed.append(f"{pin.lock.pin}, {name}: {patch.id} is {said}, {verdict.reason}")
    words = list(dict.fromkeys(word for _, _, word in counts))
    for effect in Effect:
        print(f"\n| {effect.value} | {' | '.join(words)} |\n|---{'|---' * len(words)}|")
        names = dict.fromkeys(name for kind, name, _ in counts if kind is effect)
        for name in names:
            print(f"| {name} | {' | '.join(str(counts[effect, name, word]) for word in words)} |")
        sums = [sum(n for (kind, _, said), n in counts.items() if kind is effect and said == word) for word in words]
        print(f"| all | {' | '.join(map(str, sums))} |")
    print(f"\n{counts.total()} edits", *passed, sep="\n")
    return int(len(passed) * 100 > counts.total())


def _callers(pins: Iterable[Pin]) -> int:
    """Print what is said of the edits of callers; status 1 if a harmless one is said to lead past a patch."""
    counts: Counter[tuple[str, Said]] = Counter()
    wrong: dict[Said, list[CallerEdit]] = {Said.SILENT: [], Said.FALSE: []}
    names = []
    for pin in pins:
        names.append(pin.lock.pin)
        for edit in (*BYPASSING, *HARMLESS):
            if edit.pin != pin.lock.pin:
                continue
            found = outcome(edit, pin.judged(edit.of(pin.upstream)).verdicts)
            counts[pin.lock.pin, found] += 1
            if found in wrong:
                wrong[found].append(edit)
    past, harmless = (Said.DRIFTED, Said.SAID, Said.SILENT), (Said.FITS, Said.FALSE)
    print(f"| pin | past a patch | {' | '.join(past)} | harmless | {' | '.join(harmless)} |\n{'|---' * 8}|")
    for title, group in [*((name, [name]) for name in names), ("all", names)]:
        cells: list[object] = []
        for kinds in (past, harmless):
            numbers = [sum(counts[name, kind] for name in group) for kind in kinds]
            cells += [sum(numbers), *numbers]
        print(f"| {title} | {' | '.join(map(str, cells))} |")
    for kind, edits in wrong.items():
        print(f"\n{kind.value}:", *(f"{edit} ({', '.join(edit.patches)})" for edit in edits), sep="\n")
    return int(bool(wrong[Said.FALSE]))


def _live(sources: Mapping[str, Path]) -> int:
    """Print what is said of what is put over live targets; status 1 if it is wrong of one."""
    tables: dict[str, live.Table] = {}
    with tempfile.TemporaryDirectory(prefix="verl-live-") as folder:
        for pin, source in sources.items():
            tree = source
            if source.is_file():
                tree = Path(folder) / pin
                zipfile.ZipFile(source).extractall(tree)
            tables[pin] = live.at(tree)
    print(*live.lines(tables), sep="\n")
    return int(not all(live.fits(said) for each in tables.values() for said in each.said))


def table(counts: Counts) -> Iterator[str]:
    """Yield the lines of a Markdown table: a row for each kind, a column for each pin, and what came of all."""
    pins = list(dict.fromkeys(pin for pin, _, _ in counts))
    kinds = list(dict.fromkeys(kind for _, kind, _ in counts))
    yield f"| mutant | {' | '.join(pins)} | all | {' | '.join(outcome.value for outcome in Outcome)} |"
    yield "|---" * (len(pins) + len(Outcome) + 2) + "|"
    for name, group in [*((kind.value, {kind}) for kind in kinds), ("all", set(kinds))]:
        here = {key: count for key, count in counts.items() if key[1] in group}
        cells = [sum(count for key, count in here.items() if key[0] == pin) for pin in pins]
        outcomes = [sum(count for key, count in here.items() if key[2] is outcome) for outcome in Outcome]
        yield f"| {name} | {' | '.join(map(str, [*cells, sum(cells), *outcomes]))} |"


if __name__ == "__main__":
    sys.exit(main())

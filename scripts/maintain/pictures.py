"""Makes the pictures of the documents from real runs of the commands: what each prints, and what each draws.

python scripts/maintain/pictures.py --verl PATH                 all of them, in about 10 minutes
python scripts/maintain/pictures.py --verl PATH plan.png        some of them
python scripts/maintain/pictures.py --verl PATH --work FOLDER   keeps what the commands wrote there, and starts none of
                                                                them again whose output lies there already

PATH is a checkout of verl v0.6.1, which also has to be installed here, with `verl-npu-workbench[report]`. SIMULATED:
what trains does so on virtual NPUs.
"""

from __future__ import annotations

import argparse
import codecs
import io
import os
import pty
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image
from rich.console import Console
from rich.text import Text

PROJECT = Path(__file__).resolve().parents[2]
PICTURES = PROJECT / "docs" / "pictures"
SCRIPT = "examples/ppo_trainer/run_qwen3-8b_npu.sh"
"""The launch script that is planned and rehearsed: PPO of an 8B model on 8 NPUs."""
STEPS = 20
"""How long the trainings are that are watched and compared."""
COLUMNS, NARROW, WIDE = 116, 78, 124
"""Of terminals: for the plan's bars, for a picture beside another one, and for two curves beside each other."""
MARK = "…"

_WIDEST = 1000
_FONT_OF_ANOTHER_SERVER = re.compile(r"\s*@font-face \{.*?\}", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Workshop:
    """Where the commands run, and the verl that they are given."""

    folder: Path
    verl: Path

    def printed(self, name: str, *arguments: str, columns: int = COLUMNS, **variables: str) -> str:
        """Return what a command prints on a terminal; it is not run again if its output lies in the folder."""
        kept = self.folder / f"{name}.txt"
        if not kept.is_file():
            command = [sys.executable, "-m", "verl_npu", *arguments]
            text = "".join(_on_a_terminal(command, self.folder, {**variables, "COLUMNS": str(columns)}))
            kept.write_text(text)
        text = kept.read_text().replace(f"{self.folder}/", "").replace(str(self.verl), "verl")
        return text.replace("\r\n", "\n")

    def trained(self, name: str, **variables: str) -> Path:
        """Rehearse the script for some steps, and return the training's log."""
        output = f"trained-{name}"
        script = str(self.verl / SCRIPT)
        self.printed(output, "rehearse", script, "--steps", str(STEPS), "--output", output, **variables)
        (log,) = (self.folder / output).glob("*/train.log")
        shown = self.folder / f"{name}.log"
        if not shown.is_file():
            shown.write_bytes(log.read_bytes())
        return shown


def rehearsal(workshop: Workshop) -> bytes:
    """What a rehearsal prints: its beginning, some of what it scales, and its verdict."""
    lines = workshop.printed("rehearse", "rehearse", str(workshop.verl / SCRIPT), columns=NARROW).rstrip().splitlines()
    scaled, trained = _line_with(lines, "lengths"), _line_with(lines, "step 1:")
    shown = [*lines[:3], MARK, *lines[scaled : scaled + 6], MARK, *lines[trained:-1]]
    return _screen(f"verl-npu rehearse {Path(SCRIPT).name}", shown, NARROW)


def plan(workshop: Workshop) -> bytes:
    """What a plan prints about memory."""
    lines = _planned(workshop).splitlines()
    return _screen(
        f"verl-npu plan {Path(SCRIPT).name}", lines[_line_with(lines, "fits") : _line_with(lines, "reserve, ")]
    )


def plan_over_time(workshop: Workshop) -> bytes:
    """What a plan draws."""
    _planned(workshop)
    return _small(workshop.folder / "plan.png")


def watch(workshop: Workshop) -> bytes:
    """The screen of a training that is watched."""
    log = workshop.trained("npu")
    printed = workshop.printed("watch", "watch", log.name, "--once", columns=WIDE)
    return _screen(f"verl-npu watch {log.name}", printed.rstrip().splitlines(), WIDE)


def compare(workshop: Workshop) -> bytes:
    """Two trainings as curves: with the fused operators of NPUs, and without."""
    npu, plain = workshop.trained("npu"), workshop.trained("plain", VERL_NPU_DISABLE="fused_ops")
    workshop.printed("compare", "compare", npu.name, plain.name, "--png", "compare.png")
    return _small(workshop.folder / "compare.png")


MADE: dict[str, Callable[[Workshop], bytes]] = {
    "rehearsal.svg": rehearsal,
    "plan.svg": plan,
    "plan.png": plan_over_time,
    "watch.svg": watch,
    "compare.png": compare,
}
"""Each picture, and what makes it."""


def _planned(workshop: Workshop) -> str:
    script = str(workshop.verl / SCRIPT)
    return workshop.printed("plan", "plan", script, "--no-tries", "--output", "planned", "--png", "plan.png")


def _on_a_terminal(command: Sequence[str], folder: Path, variables: dict[str, str]) -> Iterator[str]:
    """Yield what a command prints where it believes to be on a terminal of so many columns."""
    ours, its = pty.openpty()
    path = os.pathsep.join(map(str, (PROJECT, PROJECT / "packages" / "virtual-ascend")))
    environment = {**os.environ, "PYTHONPATH": path, "TERM": "xterm-256color", **variables}
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    with subprocess.Popen(command, cwd=folder, env=environment, stdout=its, stderr=its, stdin=its) as process:
        os.close(its)
        while True:
            try:
                read = os.read(ours, 1 << 16)
            except OSError:
                # So Linux says that nothing has the other end open any more.
                break
            text = decoder.decode(read)
            sys.stderr.write(text)
            yield text
    os.close(ours)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)}: expected status 0, found {process.returncode}")


def _line_with(lines: Sequence[str], text: str) -> int:
    return next(number for number, line in enumerate(lines) if text in line)


def _small(picture: Path) -> bytes:
    """Return a chart no wider than a page, and with few colours, which is all that it has."""
    target = io.BytesIO()
    drawn = Image.open(picture).convert("RGB")
    drawn.thumbnail((_WIDEST, drawn.height), Image.Resampling.LANCZOS)
    drawn.quantize(32, dither=Image.Dither.NONE).save(target, "PNG", optimize=True)
    return target.getvalue()


def _screen(command: str, lines: Sequence[str], columns: int = COLUMNS) -> bytes:
    """Return a terminal with a command and what it printed, as SVG that asks no other server for its font."""
    with open(os.devnull, "w") as nowhere:
        console = Console(record=True, width=columns, file=nowhere, force_terminal=True)
        console.print(Text(f"$ {command}", style="bold"))
        shown = Text.from_ansi("\n".join(lines))
        # Each run of characters whose width a browser's font may not keep gets a place of its own by another style.
        shown.highlight_regex(r"[\u2800-\u28ff]+", "cyan")
        shown.highlight_regex(r"[\u2500-\u257f]+", "bright_black")
        console.print(shown)
        drawn = console.export_svg(title="", unique_id="screen")
    # A size of its own, by which a table divides its width.
    drawn = re.sub(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', r'\g<0> width="\1" height="\2"', drawn, count=1)
    drawn = _FONT_OF_ANOTHER_SERVER.sub("", drawn)
    return drawn.replace("Fira Code, monospace", "ui-monospace, Menlo, Consolas, monospace").encode()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--verl", required=True, type=Path)
    parser.add_argument("--work", type=Path)
    parser.add_argument("names", nargs="*", metavar="PICTURE", help=", ".join(MADE))
    asked = parser.parse_args()
    if unknown := set(asked.names) - set(MADE):
        parser.error(f"expected some of {', '.join(MADE)}, found {', '.join(sorted(unknown))}")
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        folder = (asked.work or Path(scratch)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        workshop = Workshop(folder, asked.verl.resolve())
        for name in asked.names or MADE:
            (PICTURES / name).write_bytes(MADE[name](workshop))
            print(f"{PICTURES / name}: written")


if __name__ == "__main__":
    main()

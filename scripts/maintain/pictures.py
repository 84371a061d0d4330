"""Makes the pictures in the documents from real runs of the commands: their output, and their charts.

python scripts/maintain/pictures.py --verl PATH                 make all pictures, in about 10 minutes
python scripts/maintain/pictures.py --verl PATH plan.png        make some of them
python scripts/maintain/pictures.py --verl PATH --work FOLDER   keep the commands' output in FOLDER, and do not run a
                                                                command again whose output is there already

PATH is a checkout of verl v0.6.1, which must also be installed here, with `verl-npu-workbench[report]`. SIMULATED: the
trainings run on virtual NPUs.
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
"""The launch script to plan and rehearse: PPO of an 8B model on 8 NPUs."""
STEPS = 20
"""The length of the trainings to watch and compare."""
COLUMNS, NARROW, WIDE = 116, 78, 124
"""Widths of terminals: for the bars of a plan, for a picture beside another one, and for two curves side by side."""
MARK = "…"

_WIDEST = 1000
_FONT_FACE = re.compile(r"\s*@font-face \{.*?\}", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Workshop:
    """The folder in which the commands run, and the verl that they get."""

    folder: Path
    verl: Path

    def printed(self, name: str, *arguments: str, columns: int = COLUMNS, **variables: str) -> str:
        """Return the output of a command on a terminal. If the folder has the output already, do not run it again."""
        kept = self.folder / f"{name}.txt"
        if not kept.is_file():
            command = [sys.executable, "-m", "verl_npu", *arguments]
            text = "".join(_on_a_terminal(command, self.folder, {**variables, "COLUMNS": str(columns)}))
            kept.write_text(text)
        text = kept.read_text().replace(f"{self.folder}/", "").replace(str(self.verl), "verl")
        return text.replace("\r\n", "\n")

    def trained(self, name: str, **variables: str) -> Path:
        """Rehearse the script for STEPS steps, and return the log of the training."""
        output = f"trained-{name}"
        script = str(self.verl / SCRIPT)
        self.printed(output, "rehearse", script, "--steps", str(STEPS), "--output", output, **variables)
        (log,) = (self.folder / output).glob("*/train.log")
        shown = self.folder / f"{name}.log"
        if not shown.is_file():
            shown.write_bytes(log.read_bytes())
        return shown


def rehearsal(workshop: Workshop) -> bytes:
    """Make the picture of a rehearsal's output: its beginning, some of the scaled settings, and the verdict."""
    lines = workshop.printed("rehearse", "rehearse", str(workshop.verl / SCRIPT), columns=NARROW).rstrip().splitlines()
    scaled, trained = _line_with(lines, "lengths"), _line_with(lines, "step 1:")
    shown = [*lines[:3], MARK, *lines[scaled : scaled + 6], MARK, *lines[trained:-1]]
    return _screen(f"verl-npu rehearse {Path(SCRIPT).name}", shown, NARROW)


def plan(workshop: Workshop) -> bytes:
    """Make the picture of a plan's output about memory."""
    lines = _planned(workshop).splitlines()
    return _screen(
        f"verl-npu plan {Path(SCRIPT).name}", lines[_line_with(lines, "fits") : _line_with(lines, "reserve, ")]
    )


def plan_over_time(workshop: Workshop) -> bytes:
    """Make the chart of a plan."""
    _planned(workshop)
    return _small(workshop.folder / "plan.png")


def watch(workshop: Workshop) -> bytes:
    """Make the picture of `verl-npu watch`."""
    log = workshop.trained("npu")
    printed = workshop.printed("watch", "watch", log.name, "--once", columns=WIDE)
    return _screen(f"verl-npu watch {log.name}", printed.rstrip().splitlines(), WIDE)


def compare(workshop: Workshop) -> bytes:
    """Make the chart that compares two trainings: with the fused operators of NPUs, and without."""
    npu, plain = workshop.trained("npu"), workshop.trained("plain", VERL_NPU_DISABLE="fused_ops")
    workshop.printed("compare", "compare", npu.name, plain.name, "--png", "compare.png")
    return _small(workshop.folder / "compare.png")


PICTURE_MAKERS: dict[str, Callable[[Workshop], bytes]] = {
    "rehearsal.svg": rehearsal,
    "plan.svg": plan,
    "plan.png": plan_over_time,
    "watch.svg": watch,
    "compare.png": compare,
}
"""The pictures, and the functions that make them."""


def _planned(workshop: Workshop) -> str:
    script = str(workshop.verl / SCRIPT)
    return workshop.printed("plan", "plan", script, "--no-tries", "--output", "planned", "--png", "plan.png")


def _on_a_terminal(command: Sequence[str], folder: Path, variables: dict[str, str]) -> Iterator[str]:
    """Yield the output of a command that runs on a pseudo terminal."""
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
                # Linux raises this when no process has the other end open any more.
                break
            text = decoder.decode(read)
            sys.stderr.write(text)
            yield text
    os.close(ours)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)}: expected status 0; found {process.returncode}")


def _line_with(lines: Sequence[str], text: str) -> int:
    return next(number for number, line in enumerate(lines) if text in line)


def _small(picture: Path) -> bytes:
    """Return a chart at the width of a page, with few colours, because it has few."""
    target = io.BytesIO()
    drawn = Image.open(picture).convert("RGB")
    drawn.thumbnail((_WIDEST, drawn.height), Image.Resampling.LANCZOS)
    drawn.quantize(32, dither=Image.Dither.NONE).save(target, "PNG", optimize=True)
    return target.getvalue()


def _screen(command: str, lines: Sequence[str], columns: int = COLUMNS) -> bytes:
    """Return a terminal with a command and its output, as SVG that loads no font from a server."""
    with open(os.devnull, "w") as nowhere:
        console = Console(record=True, width=columns, file=nowhere, force_terminal=True)
        console.print(Text(f"$ {command}", style="bold"))
        shown = Text.from_ansi("\n".join(lines))
        # A browser's font may give these characters another width. With a style of its own, each run of them gets its
        # own position.
        shown.highlight_regex(r"[\u2800-\u28ff]+", "cyan")
        shown.highlight_regex(r"[\u2500-\u257f]+", "bright_black")
        console.print(shown)
        drawn = console.export_svg(title="", unique_id="screen")
    # Tables need the picture's size to divide their width.
    drawn = re.sub(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', r'\g<0> width="\1" height="\2"', drawn, count=1)
    drawn = _FONT_FACE.sub("", drawn)
    return drawn.replace("Fira Code, monospace", "ui-monospace, Menlo, Consolas, monospace").encode()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--verl", required=True, type=Path)
    parser.add_argument("--work", type=Path)
    parser.add_argument("names", nargs="*", metavar="PICTURE", help=", ".join(PICTURE_MAKERS))
    asked = parser.parse_args()
    if unknown := set(asked.names) - set(PICTURE_MAKERS):
        parser.error(f"expected some of {', '.join(PICTURE_MAKERS)}; found {', '.join(sorted(unknown))}")
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        folder = (asked.work or Path(scratch)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        workshop = Workshop(folder, asked.verl.resolve())
        for name in asked.names or PICTURE_MAKERS:
            (PICTURES / name).write_bytes(PICTURE_MAKERS[name](workshop))
            print(f"{PICTURES / name}: written")


if __name__ == "__main__":
    main()

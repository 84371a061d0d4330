"""Damages the files of a copy of this project one at a time, and loads each as an entry point in a process of its own.

    python tests/damaging.py COPY PACKAGE ENTRY GROUP PROGRAM [FILE…]

Without files it is those of the package that are loaded before the program begins. The entry point is loaded and
called as torch does it, and then the program is executed. It prints as JSON, by file and kind of damage, what the
process printed and how it ended, and under the empty name what that is where nothing is damaged.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import EntryPoint
from pathlib import Path


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _in_the_way(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGES: dict[str, Callable[[Path], object]] = {
    "deleted": Path.unlink,
    "empty": lambda path: path.write_bytes(b""),
    "cut short": _cut,
    "another text": lambda path: path.write_text("no Python at all"),
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    # Root can read every file.
    "unreadable": lambda path: path.chmod(0) if os.geteuid() else _in_the_way(path),
}


@contextmanager
def _damaged(path: Path, damage: Callable[[Path], object]) -> Iterator[None]:
    kept = path.with_suffix(".kept")
    shutil.copy2(path, kept)
    try:
        damage(path)
        yield
    finally:
        if path.is_dir():
            path.rmdir()
        kept.replace(path)


def _told(act: Callable[[], None]) -> dict[str, object]:
    """What a fork prints that does something, and how it ends."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = os.fork()
        if not child:
            os.dup2(out.fileno(), 1)
            os.dup2(err.fileno(), 2)
            status = 1
            try:
                act()
                status = 0
            except BaseException:
                traceback.print_exc()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
        _, status = os.waitpid(child, 0)
        texts = []
        for stream in (out, err):
            stream.seek(0)
            texts.append(stream.read().decode())
        return {"out": texts[0], "err": texts[1], "status": os.waitstatus_to_exitcode(status)}


def main(copy: str, package: str, entry: str, group: str, program: str, *files: str) -> int:
    sys.dont_write_bytecode = True

    def load() -> None:
        EntryPoint(package, entry, group).load()()

    def run() -> None:
        load()
        exec(program, {"__name__": "__main__"})

    def show() -> None:
        load()
        paths = {Path(m.__file__) for n, m in sys.modules.items() if n.startswith(f"{package}.") or n == package}
        print(*sorted(str(path.relative_to(copy)) for path in paths))

    found = {"": _told(run)}
    for file in files or str(_told(show)["out"]).split():
        for name, damage in DAMAGES.items():
            with _damaged(Path(copy, file), damage):
                found[f"{file} {name}"] = _told(run)
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.path.insert(0, sys.argv[1])
    sys.exit(main(*sys.argv[1:]))

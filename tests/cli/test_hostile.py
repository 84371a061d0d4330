"""Malformed sources and manifests end with one line and status 2, at once, and print no terminal commands."""

from __future__ import annotations

import io
import json
import os
import resource
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from testing.commands import manifest
from testing.interpreter import python

from verl_npu.manifest import SCHEMA, write_manifest

from .conftest import Run

MODULE = "verl/trainer/main_ppo.py"
GOOD = "def run_ppo(config, task_runner_class=None): pass\n"


def wheel(content: bytes = GOOD.encode(), method: int = zipfile.ZIP_DEFLATED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        archive.writestr(MODULE, content)
    return file.getvalue()


def sparse(folder: Path) -> Path:
    path = folder / "sparse.whl"
    path.touch()
    os.truncate(path, 20 << 30)
    return path


def sparse_module(folder: Path) -> Path:
    path = folder / MODULE
    path.parent.mkdir(parents=True)
    path.touch()
    os.truncate(path, 20 << 30)
    return folder


def bomb(folder: Path) -> Path:
    (folder / "bomb.whl").write_bytes(wheel(bytes(200 << 20)))
    return folder / "bomb.whl"


def bomb_by_another_method(folder: Path) -> Path:
    (folder / "bomb.whl").write_bytes(wheel(bytes(20 << 20), zipfile.ZIP_LZMA))
    return folder / "bomb.whl"


def encrypted(folder: Path) -> Path:
    data = bytearray(wheel())
    data[data.find(b"PK\3\4") + 6] |= 1
    data[data.find(b"PK\1\2") + 8] |= 1
    (folder / "encrypted.whl").write_bytes(data)
    return folder / "encrypted.whl"


def without_its_end(folder: Path) -> Path:
    (folder / "cut.whl").write_bytes(wheel(os.urandom(4096))[:2000])
    return folder / "cut.whl"


def without_its_beginning(folder: Path) -> Path:
    (folder / "cut.whl").write_bytes(wheel(os.urandom(4096))[2000:])
    return folder / "cut.whl"


def a_folder_without_verl(folder: Path) -> Path:
    return folder


def nothing(folder: Path) -> Path:
    return folder / "nothing"


def a_name_that_is_too_long(folder: Path) -> Path:
    return folder / ("x" * 5000)


def an_endless_device(folder: Path) -> Path:
    return Path("/dev/zero")


def a_pipe(folder: Path) -> Path:
    os.mkfifo(folder / "pipe")
    return folder / "pipe"


def deeply_nested(folder: Path) -> Path:
    (folder / MODULE).parent.mkdir(parents=True)
    (folder / MODULE).write_text("run_ppo = " + "+".join(["1"] * 50_000))
    return folder


SOURCES = [
    sparse,
    sparse_module,
    bomb,
    bomb_by_another_method,
    encrypted,
    without_its_end,
    without_its_beginning,
    a_folder_without_verl,
    nothing,
    a_name_that_is_too_long,
    an_endless_device,
    a_pipe,
    deeply_nested,
]


@pytest.mark.parametrize("source", SOURCES)
def test_a_source_that_cannot_be_read_is_one_line(
    run: Run, source: Callable[[Path], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = source(tmp_path)
    before, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
    status, output = run("check", "--source", str(path))
    assert status == 2
    (line,) = output.splitlines()
    assert line.startswith("verl-npu: ")
    assert time.monotonic() - started < 10  # a second or two on an idle machine
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10


def test_a_source_that_may_not_be_read_is_one_line(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Root can read everything, so the test raises the refusal itself.
    (tmp_path / "verl.whl").write_bytes(wheel())

    def refuse(*arguments: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("zipfile.ZipFile", refuse)
    status, output = run("check", "--source", str(tmp_path / "verl.whl"))
    assert status == 2
    assert "found Permission denied" in output
    assert len(output.splitlines()) == 1


def odd(without: str = "", **changes: object) -> str:
    content = {"schema": SCHEMA, **manifest(9, "WorkerDict", **changes)}
    return json.dumps({key: value for key, value in content.items() if key != without})


MANIFESTS = {
    **{f"without {key}": odd(without=key) for key in manifest(9, "WorkerDict")},
    "a feature without patches": json.dumps(
        {"schema": SCHEMA, **manifest(9, "x", features={"device": {"state": "applied"}})}
    ),
    "a feature that is a word": odd(features={"device": "applied"}),
    "an upstream without a pin": odd(upstreams={"verl": {"exact": True}}),
    "a pin that is a list": odd(upstreams={"verl": {"nearest_pin": [], "exact": True, "differs": []}}),
    "taints that are objects": odd(tainted=[{}]),
    "nested too deeply": "[" * 100_000,
    "not UTF-8": b"\xff\xfe\x00",
}


@pytest.mark.parametrize("text", MANIFESTS.values(), ids=MANIFESTS.keys())
def test_a_manifest_that_is_none_is_one_line_that_names_it_beside_the_others(
    run: Run, tmp_path: Path, text: str | bytes
) -> None:
    write_manifest(tmp_path, manifest(1, "driver"))
    (tmp_path / "odd.json").write_bytes(text.encode() if isinstance(text, str) else text)
    status, output = run("status", str(tmp_path))
    assert status == 1
    (line,) = [line for line in output.splitlines() if line.startswith("verl-npu: ")]
    assert "odd.json" in line
    assert "driver" in output.replace(line, "")


@pytest.mark.parametrize("kind", ["sparse", "pipe", "folder", "dangling link"])
def test_a_file_that_no_process_wrote_is_one_line(run: Run, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "odd.json"
    if kind == "sparse":
        path.touch()
        os.truncate(path, 20 << 30)
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to(tmp_path / "nowhere")
    status, output = run("status", str(tmp_path))
    assert status == 2
    (line,) = output.splitlines()
    assert "odd.json" in line


def test_a_state_and_a_number_that_no_process_writes_are_shown_as_they_are(run: Run, tmp_path: Path) -> None:
    write_manifest(tmp_path, manifest(1, "driver", "marvellous", seconds=10**400))
    status, output = run("status", str(tmp_path), "--targets")
    assert status == 0
    assert "marvellous" in output


EVIL = "\x1b]0;title\x07\x1b[31m[bold red]x[/]\u202e:smile:\n\r\udc80"


def evil_in_every_field() -> dict[str, object]:
    patch = {"target": EVIL, "state": EVIL, "reason": EVIL}
    return {
        **manifest(1, EVIL, host="h", token="t", version=EVIL, origin=EVIL, tainted=[EVIL]),
        "upstreams": {EVIL: {"nearest_pin": EVIL, "exact": False, "differs": [EVIL]}},
        "features": {EVIL: {"owner": "", "state": EVIL, "patches": {EVIL: patch}}},
    }


def is_safe(output: str) -> bool:
    return all(char.isprintable() or char == "\n" for char in output)


@pytest.mark.parametrize("options", [(), ("--targets",), ("--json",)])
def test_no_field_of_a_manifest_commands_the_terminal(run: Run, tmp_path: Path, options: tuple[str, ...]) -> None:
    write_manifest(tmp_path, evil_in_every_field())
    write_manifest(tmp_path, manifest(2, "WorkerDict", "drifted"))
    status, output = run("status", str(tmp_path), *options, columns=200)
    assert status == 1
    assert is_safe(output)
    assert "[bold red]x[/]" in output
    assert ":smile:" in output


@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "--source", EVIL),
        ("explain", EVIL),
        ("status", EVIL),
        ("check", f"--{EVIL}"),
        (EVIL,),
        (f"--{EVIL}",),
    ],
)
def test_no_word_of_the_command_line_commands_the_terminal(run: Run, arguments: tuple[str, ...]) -> None:
    status, output = run(*arguments)
    assert status == 2
    assert is_safe(output)
    assert "x1b" in output


@pytest.mark.upstream
def test_no_line_of_a_source_commands_the_terminal(run: Run, drifted: Path) -> None:
    file = drifted / MODULE
    text = file.read_text()
    file.write_text(text.replace("*, x)", "*, x, y='\x1b[31m\u202e')").replace("ray.is_initialized()", "'\\\x1b'"))
    status, output = run("check", "--diff", "--source", str(drifted))
    assert status == 1
    assert is_safe(output.replace("\t", ""))
    assert "\\x1b[31m" in output


def test_a_terminal_that_knows_only_ascii_gets_escapes_for_the_rest(tmp_path: Path) -> None:
    result = python("-m", "verl_npu", "check", "--source", f"{tmp_path}/数据", PYTHONIOENCODING="ascii")
    assert result.returncode == 2
    assert "\\u6570\\u636e" in result.stderr
    assert "Traceback" not in result.stderr

"""A hostile source tree and script: what they reach when a configuration is composed, and what their answers do."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from verl_npu_workbench.jobs.confined import sandbox_of, script_paths
from verl_npu_workbench.jobs.job import compose
from verl_npu_workbench.jobs.script import Script
from verl_npu_workbench.jobs.settings import Settings
from verl_npu_workbench.jobs.trainer import Trainer

from verl_npu.errors import JobSettingError

pytest.importorskip("hydra")
pytestmark = pytest.mark.usefixtures("sandboxed")

REACH = """
import json, os, socket, sys
found = {}
for name, path in %(paths)s.items():
    try:
        found[name] = open(path).read()
    except OSError as error:
        found[name] = None
for name, path in %(written)s.items():
    try:
        open(path, "w").write("changed")
        found[name] = "written"
    except OSError:
        found[name] = None
try:
    socket.create_connection(("127.0.0.1", %(port)s), 2)
    found["network"] = "reached"
except OSError:
    found["network"] = None
raise RuntimeError(json.dumps(found))
"""


@pytest.fixture
def trainer(tree: Path) -> Trainer:
    return Trainer("verl.trainer.main_small", (), (), 0, tree, {})


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a home with a secret."""
    home = tmp_path / "home"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh" / "key").write_text("secret")
    (home / "secret").write_text("secret")
    monkeypatch.setattr(Path, "home", lambda: home)
    return home


@pytest.fixture
def listening() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def plugin(tree: Path, place: str, home: Path, port: int) -> None:
    """Write code that runs when the configuration is composed; its final error lists what it reached."""
    file = tree / place
    file.parent.mkdir(parents=True, exist_ok=True)
    paths = {"home": str(home / "secret"), "link": str(tree / "link" / "secret"), "pip": str(tree / "data")}
    written = {"tree": str(tree / "verl" / "__init__.py")}
    file.write_text(REACH % {"paths": paths, "written": written, "port": port})


REACHED = {"home": "secret", "link": "secret", "pip": "secret", "tree": "written", "network": "reached"}


def reached(tree: Path, trainer: Trainer, unconfined: bool = False) -> dict[str, str | None]:
    with pytest.raises(JobSettingError) as error:
        compose(trainer, tree, unconfined)
    return json.loads(error.value.found[error.value.found.index("{") :])


@pytest.mark.parametrize("place", ["hydra_plugins/evil.py", "hydra.py"])
def test_a_trees_code_reaches_neither_home_nor_network_nor_writes(
    tree: Path, trainer: Trainer, home: Path, listening: int, place: str
) -> None:
    (tree / "link").symlink_to(home)
    (tree / "data").symlink_to(home / "secret")
    plugin(tree, place, home, listening)
    assert reached(tree, trainer) == dict.fromkeys(REACHED)
    # The same code reaches everything where nothing confines it.
    if place == "hydra.py":
        assert reached(tree, trainer, unconfined=True) == REACHED


def test_a_tree_that_is_the_users_home_shows_nothing_hidden(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tree / ".ssh").mkdir()
    monkeypatch.setattr(Path, "home", lambda: tree)
    words = sandbox_of(Trainer("x", (), (), 0, tree, {}), tree).arguments(tree)
    assert str(tree / ".ssh") not in words
    assert str(tree / "verl") in words


@pytest.mark.parametrize("named", ["", "..", ".ssh", "documents"])
def test_a_script_cannot_have_the_home_shown_by_its_python_path(tree: Path, home: Path, named: str) -> None:
    (home / "documents").mkdir()
    exports = {"PYTHONPATH": os.pathsep.join([str(home / named), str(tree)])}
    assert script_paths(Trainer("x", (), (), 0, tree, exports)) == [str(tree)]


def test_a_script_cannot_have_the_home_shown_by_its_configuration(tree: Path, home: Path, trainer: Trainer) -> None:
    (home / "main.yaml").write_text("secret: 1")
    asked = replace(trainer, options=(f"--config-path={home}", "--config-name=main"))
    with pytest.raises(JobSettingError):
        compose(asked, tree)


def test_a_configuration_that_a_script_names_elsewhere_is_read(tree: Path, tmp_path: Path, trainer: Trainer) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "main.yaml").write_text("here: 1")
    asked = replace(trainer, options=(f"--config-path={tmp_path / 'mine'}", "--config-name=main"))
    assert compose(asked, tree).settings.values == {"here": 1}


def test_a_configuration_is_composed_without_the_users_secrets(
    tree: Path, trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tree / "verl" / "trainer" / "config" / "main.yaml"
    config.write_text("a: ${oc.env:MY_MODE}\nb: ${oc.env:MY_TOKEN}\nc: ${oc.env:FROM_SCRIPT}\n")
    monkeypatch.setenv("MY_MODE", "fast")
    monkeypatch.setenv("MY_TOKEN", "correct-horse-7")
    made = replace(trainer, exports={"FROM_SCRIPT": "3"})
    assert compose(made, tree).settings.values == {"a": "fast", "b": "masked-MY_TOKEN", "c": "3"}
    answering(tree, "sys.exit(str(dict(os.environ)))")
    monkeypatch.setenv("UNNAMED", "correct-horse-8")
    with pytest.raises(JobSettingError) as error:
        compose(made, tree)
    assert "correct-horse" not in str(error.value)


def answering(tree: Path, code: str) -> None:
    """Put code that answers in place of the program that composes."""
    (tree / "hydra.py").write_text(
        f"import os, sys, json\nout = os.fdopen(os.dup(1), 'w')\n{code}\nout.flush()\nos._exit(0)"
    )


ANSWERS = {
    "nothing": ("pass", "nothing as the answer"),
    "no JSON": ("out.write('text')", "text that is not JSON"),
    "a list": ("out.write('[]')", "JSON that is not an object"),
    "nested JSON": ("out.write('[' * 99999)", "text that is not JSON"),
    "an object that is nested": ("out.write('{\"a\":' * 200 + '1' + '}' * 200)", "JSON with more than 64 levels"),
    "other parts": ("json.dump({'values': {}}, out)", "an answer with unexpected types"),
    "values of another type": (
        "json.dump({'values': [1], 'interpolations': {}, 'config': {}}, out)",
        "an answer with unexpected types",
    ),
    "texts of another type": (
        "json.dump({'values': {}, 'interpolations': {'a': 1}, 'config': {}}, out)",
        "an answer with unexpected types",
    ),
    "a large number": ("out.write('{\"values\": ' + '9' * 5000 + '}')", "text that is not JSON"),
    "huge JSON": ("[out.write('x' * (1 << 20)) for _ in range(100)]", "more than 64 MiB"),
}


@pytest.mark.parametrize(("code", "said"), ANSWERS.values(), ids=ANSWERS.keys())
def test_an_answer_of_another_form_is_one_line(tree: Path, trainer: Trainer, code: str, said: str) -> None:
    answering(tree, code)
    with pytest.raises(JobSettingError, match=said) as error:
        compose(trainer, tree)
    assert "\n" not in str(error.value)


def test_values_of_a_stranger_are_settings_and_follow_nothing() -> None:
    values = {
        "a": 1,
        "a.b": 2,
        "x": "${y}${y}",
        "y": "\\${z}${z}",
        "z": "${oc.env:HOME}",
        "n": float("inf"),
        "l": ["${z}"],
    }
    section = Script.section.func(type("S", (), {"settings": Settings(values)}))  # type: ignore[attr-defined]
    assert (section.a.b, section.x, section.y, section.l[0]) == (2, "${y}${y}", "\\${z}${z}", "${z}")
    assert Settings(values).whole("n", 3) == 3

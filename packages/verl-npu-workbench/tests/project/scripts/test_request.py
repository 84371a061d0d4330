from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from harness import environment, machine, pins, request, training
from harness.errors import BadInput


def checkout(folder: Path, version: str) -> Path:
    (folder / "verl" / "version").mkdir(parents=True)
    (folder / "verl" / "__init__.py").touch()
    (folder / "verl" / "version" / "version").write_text(f"{version}\n")
    return folder


def test_defaults() -> None:
    found = request.parse([], "quickstart.sh", smoke=False)
    assert (found.pin.name, found.steps, found.npus, found.job) == ("v0.6.1", 40, 2, "grpo")
    assert found.timeout is None
    assert found.transformers == found.pin.transformers


def test_settings_for_verl_are_passed_on() -> None:
    assert request.parse(["--", "data.seed=1"], "quickstart.sh", smoke=False).overrides == ("data.seed=1",)


@pytest.mark.parametrize(
    ("arguments", "smoke", "words"),
    [
        (["--pin", "v9"], False, "expected one of v0.6.1"),
        (["--pin", "796871d7"], False, "--verl PATH"),
        (["--steps", "0"], False, "--steps: expected a whole number of at least 1"),
        (["--steps", "many"], False, "'many'"),
        (["--npus", "-1"], False, "--npus"),
        (["--transformers", "new"], False, "--transformers"),
        (["--verl", "."], False, "the root of a verl source tree"),
        (["--colour"], False, "--colour"),
        (["--", "novalue"], False, "'novalue'"),
        (["--job", "chess"], True, "expected one of grpo"),
        ([], True, "--job"),
        (["--rollout", "vllm"], False, "--rollout: expected one of small, vllm-ascend"),
        (
            ["--rollout", "vllm-ascend"],
            False,
            r"here \(796871d7, ccd7d934, v0.7.1, v0.9.1\); found v0.6.1",
        ),
        (["--job", "grpo", "--timeout", "soon"], True, "--timeout"),
    ],
)
def test_bad_input_is_one_line(
    arguments: list[str], smoke: bool, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput, match=words) as caught:
        request.parse(arguments, "quickstart.sh", smoke)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("more", [["--job", "gkd"], ["--job", "grpo", "--torch-npu", "2.8.0"]])
def test_vllm_ascend_is_for_some_jobs_on_the_virtual_ascends_own_torch_npu(tmp_path: Path, more: list[str]) -> None:
    words = ["--verl", str(checkout(tmp_path, "0.7.0.dev")), "--pin", "ccd7d934", "--rollout", "vllm-ascend", *more]
    jobs = "grpo or one_step_off or separate_async or colocate_async"
    with pytest.raises(BadInput, match=f"--rollout vllm-ascend: this engine works only with --job {jobs}, and"):
        request.parse(words, "smoke.sh", smoke=True)


def test_a_script_ends_with_status_2_and_one_line(tmp_path: Path) -> None:
    command = [sys.executable, str(pins.SCRIPTS / "smoke.py"), "--job", "grpo", "--npus", "x"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (answer.returncode, answer.stdout, answer.stderr.count("\n")) == (2, "", 1)
    assert answer.stderr.startswith("smoke.sh: ")


def test_checkout_stands_for_a_pin_by_its_version(tmp_path: Path) -> None:
    found = request.parse(["--verl", str(checkout(tmp_path, "0.5.0.dev"))], "quickstart.sh", smoke=False)
    assert found.pin.name == "796871d7"
    assert found.checkout is not None
    assert found.checkout.revision is None


@pytest.mark.parametrize(
    ("version", "words", "pin"),
    [("0.7.0.dev", r"pins ccd7d934 and v0\.7\.0 have.*with --pin", "v0.7.0"), ("3.0", "with --pin", "v0.6.1")],
    ids=["of two pins", "of none"],
)
def test_checkout_of_a_version_that_is_not_one_pins_needs_a_pin(
    tmp_path: Path, version: str, words: str, pin: str
) -> None:
    path = str(checkout(tmp_path, version))
    with pytest.raises(BadInput, match=words):
        request.parse(["--verl", path], "quickstart.sh", smoke=False)
    assert request.parse(["--verl", path, "--pin", pin], "quickstart.sh", smoke=False).pin.name == pin


@pytest.mark.parametrize(("value", "npus", "words"), [("two", 2, "'two'"), ("0", 2, "'0'"), ("1", 2, "2 ranks")])
def test_virtual_npus_that_cannot_be(value: str, npus: int, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIRTUAL_ASCEND", value)
    monkeypatch.setattr(machine, "_real_npus", lambda python: 0)
    with pytest.raises(BadInput, match=words):
        machine.look(npus)


def test_no_compiler_is_told_before_anything_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VIRTUAL_ASCEND", raising=False)
    monkeypatch.setattr(machine, "_real_npus", lambda python: 0)
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(BadInput, match="C\\+\\+ compiler"):
        machine.look(2)


def test_real_npus_are_used_where_there_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VIRTUAL_ASCEND", raising=False)
    monkeypatch.setattr(machine, "_real_npus", lambda python: 8)
    assert machine.look(2) == machine.Machine(virtual=False, npus=8)
    with pytest.raises(BadInput, match="--npus 8 or fewer"):
        machine.look(9)
    monkeypatch.setenv("VIRTUAL_ASCEND", "2")
    with pytest.raises(BadInput, match="Unset the variable"):
        machine.look(2)


def test_environment_is_reused_only_when_whole_and_of_the_same_inputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VERL_NPU_VENVS", str(tmp_path))
    recipe = environment.Recipe(pins.find("v0.6.1"), None, "4.57.6", virtual=True)
    assert not recipe.ready()
    recipe.python.parent.mkdir(parents=True)
    recipe.python.touch()
    assert not recipe.ready()
    (recipe.folder / environment.STAMP).write_text(recipe.stamp())
    assert recipe.ready()
    (recipe.folder / environment.STAMP).write_text("other inputs")
    assert not recipe.ready()
    other = environment.Recipe(pins.find("v0.6.1"), None, "4.53.3", virtual=True)
    assert other.folder != recipe.folder
    assert other.stamp() != recipe.stamp()
    assert "transformers==4.53.3" in other.requirements()
    assert "4.57.6" not in other.requirements()


_AUTHOR = ("-c", "user.name=a", "-c", "user.email=a@b")
SERVED = [pin for pin in pins.PINS.values() if pin.engine is not None]


@pytest.mark.parametrize("pin", SERVED, ids=lambda pin: pin.name)
def test_vllm_ascend_is_in_an_environment_of_its_own_with_its_torch(pin: pins.Pin) -> None:
    assert pin.engine is not None
    small = environment.Recipe(pin, None, pin.transformers, virtual=True)
    served = environment.Recipe(pin, None, pin.transformers, virtual=True, rollout="vllm-ascend")
    assert small.torch == pin.torch
    assert served.torch == pin.engine.torch
    assert served.folder.name == f"{small.folder.name}-vllm-ascend-{pin.engine.vllm_ascend}"
    assert served.stamp() != small.stamp()
    release = () if pin.engine.commit else (f"vllm-ascend=={pin.engine.vllm_ascend}",)
    assert served.engine_packages() == (*pin.engine.packages, *release)
    assert small.engine_packages() == (pin.engine.packages if pin.engine.always else ())


def checkout_of_vllm_ascend(folder: Path) -> Path:
    (folder / "vllm_ascend").mkdir(parents=True)
    (folder / "vllm_ascend" / "__init__.py").touch()
    return folder


def test_an_engine_of_a_commit_is_built_from_the_checkout_that_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = pins.PINS["796871d7"].engine
    assert engine is not None
    assert engine.vllm_ascend.endswith(f"+g{engine.commit[:9]}")
    monkeypatch.setenv(pins.SOURCE, str(checkout_of_vllm_ascend(tmp_path / "source")))
    assert pins.engine_source(engine) == tmp_path / "source"


@pytest.mark.parametrize("named", ["", "elsewhere", "empty"])
def test_without_that_checkout_nothing_is_installed(
    named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv(pins.SOURCE, str(tmp_path / named) if named else "")
    monkeypatch.setenv("VERL_NPU_VENVS", str(tmp_path / "venvs"))
    recipe = environment.Recipe(pins.PINS["796871d7"], None, "4.55.4", virtual=True, rollout="vllm-ascend")
    with pytest.raises(
        BadInput, match=r"expected VERL_NPU_VLLM_ASCEND_SOURCE to be the path of a vllm-ascend checkout"
    ):
        environment.make(recipe)
    assert not (tmp_path / "venvs").exists()


def test_a_checkout_of_another_commit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = pins.PINS["796871d7"].engine
    assert engine is not None
    source = checkout_of_vllm_ascend(tmp_path / "source")
    for words in (["init", "-q"], ["add", "."], [*_AUTHOR, "commit", "-qm", "one"]):
        subprocess.run(["git", "-C", str(source), *words], check=True)
    monkeypatch.setenv(pins.SOURCE, str(source))
    with pytest.raises(BadInput, match=r"found .*source at [0-9a-f]{10}. Check out 1de16ead8e"):
        pins.engine_source(engine)


@pytest.mark.parametrize("pin", SERVED, ids=lambda pin: pin.name)
def test_an_engines_list_names_each_package_once_and_in_one_version(pin: pins.Pin) -> None:
    transformers = pins.transformers_for(pin, "vllm-ascend")
    served = environment.Recipe(pin, None, transformers, virtual=True, rollout="vllm-ascend").requirements()
    listed = [line for line in served.splitlines() if line and not line.startswith("#")]
    assert all("==" in line for line in listed)
    versions: dict[str, set[str]] = {}
    for line in listed:
        name, _, version = line.partition("==")
        versions.setdefault(name.partition("[")[0].lower(), set()).add(version)
    assert {name: found for name, found in versions.items() if len(found) > 1} == {}
    assert f"transformers=={transformers}" in listed
    assert {"numba", "compressed-tensors"} <= versions.keys()


@pytest.mark.parametrize(("pin", "vllm", "torch_npu"), [("v0.9.1", "0.23.0", "2.10.0"), ("v0.7.1", "0.13.0", "2.8.0")])
def test_an_engine_is_told_its_release_and_the_torch_npu_that_goes_with_it(
    pin: str, vllm: str, torch_npu: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("VLLM_VERSION", "VIRTUAL_ASCEND_TORCH_NPU_VERSION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("VIRTUAL_ASCEND_MEMORY", "4")
    asked = request.parse(["--pin", pin, "--rollout", "vllm-ascend"], "quickstart.sh", smoke=False)
    told = training._environment(asked, machine.Machine(virtual=True, npus=2), tmp_path, tmp_path)
    assert (told["VLLM_VERSION"], told["VIRTUAL_ASCEND_TORCH_NPU_VERSION"]) == (vllm, torch_npu)
    assert told["VIRTUAL_ASCEND_MEMORY"] == "4"
    small = request.parse(["--pin", pin], "quickstart.sh", smoke=False)
    assert "VLLM_VERSION" not in training._environment(small, machine.Machine(True, 2), tmp_path, tmp_path)


def test_vllm_for_virtual_npus_is_not_installed_on_real_ones() -> None:
    recipe = environment.Recipe(pins.find("ccd7d934"), None, "4.57.6", virtual=False)
    assert recipe.engine is None
    assert recipe.engine_packages() == ()


@pytest.mark.parametrize("pin", list(pins.PINS.values()), ids=lambda pin: pin.name)
def test_pins_keep_to_the_numpy_of_their_verl_and_to_no_torchvision(pin: pins.Pin) -> None:
    listed = pin.requirements
    assert all("==" in line for line in listed)
    numpy = "2" if pin.name in ("v0.9.0", "v0.9.1", "1dda039b") else "1"
    assert any(line.startswith(f"numpy=={numpy}.") for line in listed)
    assert f"transformers=={pin.transformers}" in listed
    assert not any(line.startswith(("torch==", "torchvision", "qwen-vl-utils", "verl")) for line in listed)

"""examples/verl-npu-example, built and installed beside verl-npu: checked, applied, drifted by an edit, and removed.

vLLM is not installed here. A package with the one function that the example patches stands in for it.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from verl_npu.registry.source.folder import installed_folder

pytestmark = pytest.mark.upstream
EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "verl-npu-example"
NAME = "verl-npu-example"
SHOW = """
import json, verl_npu, verl.utils.memory_utils, vllm.utils
print(vllm.utils.get_ip())
print(json.dumps(verl_npu.status()["features"]))
"""


class Environment:
    """A virtual environment over that of the tests, in which pip installs and removes packages."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        venv.create(folder, symlinks=True)
        self.python = folder / "bin" / "python"
        paths = {"base": str(folder), "platbase": str(folder)}
        self.site = Path(sysconfig.get_path("purelib", vars=paths))
        outer = sysconfig.get_path("purelib")
        (self.site / "outer.pth").write_text(f"import site; site.addsitedir({outer!r})\n")

    def pip(self, *words: str) -> None:
        command = [sys.executable, "-m", "pip", "--python", str(self.python), "--disable-pip-version-check", *words]
        subprocess.run([*command, "--quiet"], check=True, capture_output=True)

    def run(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        kept = {"PATH": "/usr/bin:/bin", "HOME": str(self.folder), "LANG": "C.UTF-8"}
        command = [str(self.python), *words]
        return subprocess.run(
            command, env=kept | variables, cwd=self.folder, capture_output=True, text=True, check=False
        )

    def features(self, *words: str) -> dict[str, dict]:
        """Return the report of `check` on the features that others bring."""
        return {feature["name"]: feature for feature in self.content(*words)["features"] if feature["owner"]}

    def content(self, *words: str) -> dict:
        """Return the report of `check`."""
        done = self.run("-m", "verl_npu", "check", "--json", *words)
        assert done.returncode in (0, 1), done.stderr
        return json.loads(done.stdout)


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """Return an environment with the example, built as its users build it, and a stand-in for vLLM."""
    if installed_folder("verl") is None:
        pytest.skip("verl is not installed")
    folder = tmp_path_factory.mktemp("example")
    source = shutil.copytree(EXAMPLE, folder / "source")
    made = Environment(folder / "environment")
    made.pip("wheel", "--no-build-isolation", "--no-deps", "--no-index", "-w", str(folder), str(source))
    (wheel,) = folder.glob("*.whl")
    made.pip("install", "--no-deps", "--no-index", str(wheel))
    (made.site / "vllm" / "utils").mkdir(parents=True)
    (made.site / "vllm" / "__init__.py").write_text("")
    (made.site / "vllm" / "utils" / "__init__.py").write_text('def get_ip() -> str:\n    return "0.0.0.0"\n')
    return made


def test_check_shows_it_with_its_owner(environment: Environment) -> None:
    found = environment.features()
    assert {name: (each["owner"], each["state"]) for name, each in found.items()} == {
        "example_memory": (NAME, "pending"),
        "example_address": (NAME, "pending"),
    }
    text = environment.run("-m", "verl_npu", "check").stdout
    assert f"example_memory of {NAME}" in text
    assert "vllm near 0.11.0" in text


@pytest.mark.nightly("examples", "verl_npu/features/contributions.py", "verl_npu/cli")
def test_explain_says_who_brings_a_patch(environment: Environment) -> None:
    done = environment.run("-m", "verl_npu", "explain", "example_memory.one_attempt")
    assert f"owner       {NAME}" in done.stdout
    assert "v0.6.1 needed" in done.stdout


def test_a_job_applies_it_and_says_whose_it_is(environment: Environment) -> None:
    done = environment.run("-c", SHOW, VERL_NPU="on", HCCL_IF_IP="10.0.0.7")
    address, features = done.stdout.splitlines()[-2:]
    assert address == "10.0.0.7", done.stderr
    brought = {name: each for name, each in json.loads(features).items() if each["owner"]}
    assert {name: (each["owner"], each["state"]) for name, each in brought.items()} == {
        "example_memory": (NAME, "applied"),
        "example_address": (NAME, "applied"),
    }


@pytest.mark.nightly("examples", "verl_npu/features/contributions.py", "verl_npu/cli")
def test_status_shows_it_with_its_owner(environment: Environment) -> None:
    done = environment.run("-m", "verl_npu", "status", VERL_NPU="on")
    assert f"example_memory of {NAME}" in done.stdout, done.stderr


@pytest.mark.nightly("examples", "verl_npu/features/contributions.py", "verl_npu/cli")
def test_an_edit_of_the_target_drifts_it_alone(environment: Environment, tmp_path: Path) -> None:
    folder = installed_folder("verl")
    shutil.copytree(folder.path, tmp_path / "verl", ignore=shutil.ignore_patterns("__pycache__"))
    target = tmp_path / "verl" / "utils" / "memory_utils.py"
    text = target.read_text()
    target.write_text(text.replace("max_retries: int = 3) -> None", "retries: int = 3) -> None"))
    assert target.read_text() != text
    states = {each["name"]: each["state"] for each in environment.content("--source", str(tmp_path))["features"]}
    assert [name for name, state in states.items() if state == "drifted"] == ["example_memory"]


@pytest.mark.nightly("examples", "verl_npu/features/contributions.py", "verl_npu/cli")
def test_a_lock_goes_into_its_own_folder_and_over_no_other(environment: Environment, tmp_path: Path) -> None:
    folder = installed_folder("verl").path.parent
    words = ("-m", "verl_npu.maintain", "lock", "--features", NAME, "--source", str(folder), "--pin")
    own = environment.site / "verl_npu_example" / "locks" / "verl"
    before = (own / "v0.6.1" / "lock.json").read_bytes()
    assert environment.run(*words, "v9").returncode == 0
    made = json.loads((own / "v9" / "lock.json").read_text())
    assert list(made["patches"]) == ["example_memory.one_attempt"]
    shutil.rmtree(own / "v9")
    done = environment.run(*words, "v0.6.1", "--revision", "another")
    assert done.returncode == 2
    assert "this pin already has a lock; add --replace" in done.stderr
    assert (own / "v0.6.1" / "lock.json").read_bytes() == before
    assert environment.run(*words, "v0.6.1", "--replace", "--output", str(tmp_path)).returncode == 0
    assert (tmp_path / "verl" / "v0.6.1" / "lock.json").read_bytes() != b""


WRITTEN = """
from verl_npu.registry import Never
from . import device

TARGET = "verl.utils.memory_utils:optimize_memory_for_inference"

@device.wrap(TARGET, why="w", how="h", link="none", retired_by=Never("a test"))
def leave_it(original): ...
"""


@pytest.mark.nightly("examples", "verl_npu/features/contributions.py", "verl_npu/cli")
def test_what_is_written_into_verl_npu_is_said_to_be_lost_and_what_is_brought_to_it_is_not(
    environment: Environment, wheel: Path
) -> None:
    environment.pip("install", "--no-deps", str(wheel))
    package = environment.site / "verl_npu"
    (package / "features" / "device" / "memory.py").write_text(WRITTEN)
    with (package / "features" / "device" / "__init__.py").open("a") as stream:
        stream.write("from . import memory\n")
    source = str(installed_folder("verl").path.parent)
    done = environment.run("-m", "verl_npu.maintain", "lock", "--pin", "v0.6.1", "--replace", "--source", source)
    assert done.returncode == 0, done.stderr
    written = environment.content()
    assert {"features/device/memory.py", "features/device/__init__.py", "patches/verl/v0.6.1/lock.json"} == {
        str(Path(file).relative_to(package)) for file in written["strange_files"]
    }
    text = " ".join(environment.run("-m", "verl_npu", "check").stdout.split())
    assert "These files of the installed verl-npu were changed, and a reinstallation undoes that: " in text
    assert "into a distribution of your own (docs/writing-a-patch.md)" in text

    environment.pip("install", "--no-deps", "--force-reinstall", str(wheel))
    assert environment.content()["strange_files"] == []
    assert {name: each["state"] for name, each in environment.features().items()} == {
        "example_memory": "pending",
        "example_address": "pending",
    }
    environment.pip("uninstall", "-y", "verl-npu")
    shutil.rmtree(package, ignore_errors=True)


# Runs last, because it removes the package that the other tests look at.
@pytest.mark.nightly("examples", "verl_npu/features/contributions.py", "verl_npu/cli")
def test_nothing_of_it_is_left_when_it_is_removed(environment: Environment) -> None:
    environment.pip("uninstall", "-y", NAME)
    assert [path.name for path in environment.site.glob("*example*")] == []
    assert environment.features() == {}
    done = environment.run("-c", SHOW, VERL_NPU="on", HCCL_IF_IP="10.0.0.7")
    assert done.stdout.splitlines()[-2] == "0.0.0.0"
    assert "example" not in done.stdout + done.stderr

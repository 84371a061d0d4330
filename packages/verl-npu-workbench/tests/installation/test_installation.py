from __future__ import annotations

import dataclasses
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from verl_npu_workbench.diagnosis.judgement import judge
from verl_npu_workbench.installation.steps import constraints, dockerfile, requirements, steps
from verl_npu_workbench.installation.target import Arch, Npu, Target
from verl_npu_workbench.pins import PINS, Component

TARGETS = [
    Target(pin, arch, npu, in_image)
    for pin in PINS.values()
    for arch in Arch
    for npu in Npu
    for in_image in (False, True)
    if Target(pin, arch, npu).documented and (not in_image or Target(pin, arch, npu).image is not None)
]
NIGHTLY = pytest.mark.nightly("verl_npu_workbench/installation/", "pins/")
every = pytest.mark.parametrize(
    "target",
    [
        pytest.param(
            one,
            marks=() if one.pin.name == "v0.7.1" and (one.arch is Arch.X86) is one.in_image else NIGHTLY,
            id=f"{one.pin.name}-{one.arch.value}-{one.npu.value}{'-image' if one.in_image else ''}",
        )
        for one in TARGETS
    ],
)


def parsed(text: str) -> dict[str, Requirement]:
    lines = [line.partition("  #")[0].strip() for line in text.splitlines() if not line.startswith("#")]
    found = [Requirement(line) for line in lines if line]
    return {one.name.lower().replace("_", "-"): one for one in found}


def commands(target: Target) -> str:
    return "\n".join(command for step in steps(target) for command in step.commands)


def admitted(version: str, specifier: SpecifierSet) -> bool:
    return specifier.contains(version, prereleases=True)


# pip can read the requirements, and none is a torch for CUDA.


@every
def test_requirements_and_constraints_are_read_by_packaging_and_agree(target: Target) -> None:
    wanted, kept = parsed(requirements(target)), parsed(constraints(target))
    assert {"torch", "torch-npu", "numpy", "tensordict"} <= set(kept)
    for name in set(wanted) & set(kept):
        exact = [one.version for one in kept[name].specifier if one.operator == "=="]
        assert all(admitted(version, wanted[name].specifier) for version in exact)


@every
def test_torch_and_torch_npu_are_of_one_release(target: Target) -> None:
    kept = parsed(constraints(target))
    torch, npu = ({one.version for one in kept[name].specifier} for name in ("torch", "torch-npu"))
    release = {re.match(r"\d+\.\d+\.\d+", version)[0] for version in torch | npu}
    assert len(release) == 1


@every
def test_no_torch_for_cuda_can_be_installed(target: Target) -> None:
    kept = constraints(target)
    plain = re.findall(r"(?m)^torch(?:vision)?==[\d.]+(?!\+cpu)\s", kept)
    assert (plain == []) == (target.arch is Arch.X86)
    typed = commands(target)
    assert 'export PIP_CONSTRAINT="$PWD/constraints.txt"' in typed
    assert "nvidia" not in typed + requirements(target)
    for line in typed.splitlines():
        if line.startswith("pip install") and '"torch==' in line:
            assert ('--index-url "$TORCH_CPU_INDEX"' in line) == (target.arch is Arch.X86)


@every
def test_what_does_not_work_on_npus_is_never_installed(target: Target) -> None:
    installs = [line for line in commands(target).splitlines() if "install" in line and "uninstall" not in line]
    everything = "\n".join([*installs, requirements(target)])
    assert not re.search(r"flash[-_]attn|liger|\btriton(?!-ascend)\b", everything)


# The order.


@every
def test_torch_is_first_and_what_may_replace_it_comes_later(target: Target) -> None:
    typed = commands(target)
    order = [
        "torch-npu",
        "-r requirements.txt",
        "-e ./vllm\n",
        "-e ./vllm-ascend",
        "pip install ./verl_npu*.whl",
        "verl-npu check",
    ]
    places = [typed.index(each) for each in order]
    assert places == sorted(places)


@every
def test_engines_are_installed_without_their_own_requirements_on_torch(target: Target) -> None:
    typed = commands(target)
    for engine in ("./vllm", "./vllm-ascend"):
        (line,) = [line for line in typed.splitlines() if line.endswith(f"-e {engine}")]
        assert "--no-deps" in line
        assert "--no-build-isolation" in line


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        ("torch==2.8.0", False),
        ("torch-npu==2.7.1", False),
        ("torch_npu==2.7.1", False),
        ("torchvision", False),
        ("transformers<=4.57.1", False),
        ("numpy<2.0.0", False),
        ("triton-ascend==3.2.0", False),
        ("xgrammar==0.1.25", True),
        ("tokenizers>=0.21", True),
        ("torchdata", True),
        ("fastapi<0.124.0", True),
    ],
)
def test_the_filter_of_an_engines_requirements(line: str, kept: bool, tmp_path: Path) -> None:
    typed = commands(Target(PINS["v0.7.1"], Arch.ARM, Npu.A2))
    (command,) = [each for each in typed.splitlines() if each.endswith("> vllm-ascend-requirements.txt")]
    (tmp_path / "vllm-ascend").mkdir()
    (tmp_path / "vllm-ascend/requirements.txt").write_text(f"{line}\nalways\n")
    subprocess.run(["bash", "-eo", "pipefail", "-c", command], check=True, cwd=tmp_path)
    assert (line in (tmp_path / "vllm-ascend-requirements.txt").read_text().splitlines()) is kept


@pytest.mark.parametrize(("arch", "needs"), [(Arch.ARM, "==0.8.3"), (Arch.X86, ">=0.8.0,<=0.9.1,!=0.9.0")])
def test_tensordict_is_the_one_that_the_documents_name_for_the_processor(arch: Arch, needs: str) -> None:
    target = Target(PINS["796871d7"], arch, Npu.A2)
    assert parsed(requirements(target))["tensordict"].specifier == SpecifierSet(needs)
    assert parsed(constraints(target))["tensordict"].specifier == SpecifierSet(needs)


@every
def test_mindspeeds_own_requirements_are_installed_without_what_the_constraints_decide(
    target: Target, tmp_path: Path
) -> None:
    typed = commands(target).splitlines()
    if not any("-e ./MindSpeed" in line for line in typed):
        return
    (command,) = [line for line in typed if line.endswith("> mindspeed-requirements.txt")]
    (tmp_path / "MindSpeed").mkdir()
    (tmp_path / "MindSpeed/requirements.txt").write_text("numpy<=1.26.0\nscipy\ntransformers>=4.43.2\neinops\n")
    subprocess.run(["bash", "-eo", "pipefail", "-c", command], check=True, cwd=tmp_path)
    assert (tmp_path / "mindspeed-requirements.txt").read_text().split() == ["scipy", "einops"]
    assert typed.index("pip install -r mindspeed-requirements.txt") > typed.index(command)


def test_a3_compiles_vllm_ascend_for_itself() -> None:
    typed = {npu: commands(Target(PINS["v0.9.1"], Arch.ARM, npu)) for npu in Npu}
    assert "SOC_VERSION=ascend910b1" in typed[Npu.A2]
    assert "SOC_VERSION=ascend910_9392" in typed[Npu.A3]
    assert "SOC_VERSION=ascend950dt_9582" in typed[Npu.A5]


def test_ascend_950_has_the_versions_of_its_own_page_where_there_is_one() -> None:
    found = {npu: Target(PINS["v0.9.1"], Arch.ARM, npu) for npu in Npu}
    assert found[Npu.A5].specifier(Component.TRANSFORMERS) == "==4.57.6"
    assert found[Npu.A3].specifier(Component.TRANSFORMERS) == "==5.10.4"
    assert "checkout 0c6c0ceaa523a96032dee1539a52032155e6404e" in commands(found[Npu.A5])
    covered = {name for name, pin in PINS.items() if Target(pin, Arch.ARM, Npu.A5).documented}
    assert covered == {"v0.9.0", "v0.9.1", "1dda039b"}


def test_python_is_one_that_the_documents_allow_and_the_images_own_in_an_image() -> None:
    for target in TARGETS:
        if target.in_image:
            assert target.image is not None
            assert target.image.base.endswith(f"py{target.python}")
        else:
            assert admitted(f"{target.python}.9", SpecifierSet(target.specifier(Component.PYTHON)))


@pytest.mark.parametrize("asked", [False, True])
def test_jemalloc_is_installed_if_asked_for(asked: bool) -> None:
    target = Target(PINS["v0.9.1"], Arch.ARM, Npu.A2, jemalloc=asked)
    assert ("libjemalloc2" in commands(target)) is asked
    image = dockerfile(dataclasses.replace(target, in_image=True))
    assert ("ENV LD_PRELOAD=libjemalloc.so.2\n" in image) is asked


# Files.


@every
def test_the_script_is_a_program_for_bash(target: Target, tmp_path: Path) -> None:
    script = tmp_path / "install.sh"
    script.write_text(commands(target))
    assert subprocess.run(["bash", "-n", script], capture_output=True, check=False).stderr == b""


@every
def test_a_dockerfile_builds_upon_verls_own_base_and_names_no_registry(target: Target) -> None:
    if not target.in_image:
        return
    text = dockerfile(target)
    assert target.image is not None
    assert f"FROM ${{REGISTRY}}/{target.image.base}\n" in text
    assert f"cann:{target.specifier(Component.CANN).removeprefix('==').lower()}-" in text
    assert constraints(target) in text
    assert requirements(target) in text
    for block in re.findall(r"(?m)^RUN ((?:.*\\\n)*.*)$", text):
        assert subprocess.run(["bash", "-n", "-c", block], capture_output=True, check=False).stderr == b""


def test_a_pin_without_a_dockerfile_of_verls_has_none() -> None:
    assert dockerfile(Target(PINS["796871d7"], Arch.ARM, Npu.A2, in_image=True)) == ""


def test_a_trap_names_an_error_that_a_rule_for_logs_knows() -> None:
    traps = "\n".join(trap for target in TARGETS for step in steps(target) for trap in step.traps)
    error = "camem allocator is not available"
    assert f"`{error}`" in traps
    assert judge([f"AssertionError: {error}"]).root is not None


# The registry's own answer.


@pytest.mark.e2e
@pytest.mark.parametrize("pin", [*PINS])
def test_the_package_index_resolves_it_for_arm_without_a_package_for_cuda(pin: str, tmp_path: Path) -> None:
    """Engines, which are built from source, and packages from git cannot be resolved without an NPU."""
    uv = shutil.which("uv")
    if uv is None:
        pytest.skip("needs uv, which resolves for another platform; pip judges markers by this machine")
    target = Target(PINS[pin], Arch.ARM, Npu.A2)
    wanted = [line for line in requirements(target).splitlines() if " @ git+" not in line]
    torch = [
        f"{each.value}{target.specifier(each)}"
        for each in (Component.TORCH, Component.TORCH_NPU, Component.TORCHVISION)
    ]
    (tmp_path / "requirements.txt").write_text("\n".join([*wanted, *torch]))
    (tmp_path / "constraints.txt").write_text(constraints(target))
    platform = ["--python-version", target.python, "--python-platform", "aarch64-unknown-linux-gnu"]
    ended = subprocess.run(
        [uv, "pip", "compile", "--quiet", "requirements.txt", "-c", "constraints.txt", *platform],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        timeout=120,
    )
    if re.search(r"dns error|error sending request|Connection refused|tunnel", ended.stderr):
        pytest.skip("the package index cannot be reached")
    assert ended.returncode == 0, ended.stderr
    resolved = parsed("\n".join(line for line in ended.stdout.splitlines() if not line.startswith(" ")))
    assert not [name for name in resolved if name.startswith(("nvidia-", "cuda-")) or name == "triton"]
    kept = parsed(constraints(target))
    for name in ("torch", "torch-npu", "numpy", "tensordict"):
        (version,) = [one.version for one in resolved[name].specifier]
        assert admitted(version, kept[name].specifier)

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from verl_npu_workbench.doctor import Judged, examine

from verl_npu.findings import Finding, Severity, exit_status

from . import smi
from .box import RIGHT, Box

Make = Callable[..., Box]
ERROR, WARNING, OK, SKIPPED = Severity.ERROR, Severity.WARNING, Severity.OK, Severity.SKIPPED


def alarms(findings: list[Finding]) -> dict[str, Severity]:
    return {each.code: each.severity for each in findings if each.severity in (ERROR, WARNING)}


@pytest.mark.parametrize("npus", ["a2", "a3"])
@pytest.mark.parametrize("pin", [right.name for right in RIGHT])
def test_a_right_environment_has_no_alarm(make: Make, pin: str, npus: str) -> None:
    findings = examine(make(pin, npus).site())
    assert alarms(findings) == {}
    assert exit_status(findings) == 0


IMAGE = "796871d7's image"


@pytest.mark.parametrize(
    ("package", "version", "code", "fix"),
    [
        ("torch_npu", "2.5.1", "torch_npu", "torch_npu==2.7.1"),
        ("vllm-ascend", "0.7.3.post1", "vllm-ascend", "checkout 1de16ead8e"),
        ("mindspeed", "0.16.0", "mindspeed", "checkout 1cdd0abd75"),
        ("numpy", "2.2.0", "numpy", "numpy<2.0.0"),
    ],
)
def test_one_wrong_package_in_the_published_image_is_judged_by_the_image(
    make: Make, package: str, version: str, code: str, fix: str
) -> None:
    box = make(IMAGE)
    box.install(package, version)
    (finding,) = (each for each in examine(box.site()) if each.code == code)
    assert finding.severity in (WARNING, ERROR)
    assert finding.expected.endswith(f"({IMAGE})")
    assert fix in finding.fix


def test_another_commit_of_transformers_than_the_images_is_judged_by_its_version(make: Make) -> None:
    box = make(IMAGE)
    box.install("transformers", "4.56.0.dev0", url="https://example.invalid/x", vcs_info={"commit_id": "f" * 40})
    (finding,) = (each for each in examine(box.site()) if each.code == "transformers")
    assert finding.severity is WARNING
    assert "index_first_axis" in finding.why
    # The revision that goes with the rest of the image, and not the one that verl's documents of that time name.
    assert "checkout 836570e925" in finding.fix


def test_the_doctor_says_that_it_compares_with_the_image(make: Make) -> None:
    (finding,) = (each for each in examine(make(IMAGE).site()) if each.code == "verl")
    assert finding.found.endswith(f"; compared with the needs of {IMAGE}")


def test_the_layout_of_weights_is_no_alarm_where_vllm_ascend_does_not_read_the_variable(make: Make) -> None:
    box = make(IMAGE)
    _set("VLLM_ASCEND_ENABLE_NZ", "1")(box)
    assert alarms(examine(box.site())) == {}


@dataclass(frozen=True)
class Case:
    """A right environment in which one thing is changed."""

    title: str
    pin: str
    change: Callable[[Box], object]
    alarms: dict[str, Severity]
    """Every alarm that the doctor raises; there may be no other."""
    found: str
    fix: str
    """A text in the fix of the first alarm."""
    npus: str = "a2"


def _install(name: str, version: str, **more: object) -> Callable[[Box], object]:
    return lambda box: box.install(name, version, **more)


def _uninstall(*names: str) -> Callable[[Box], object]:
    return lambda box: box.uninstall(*names)


def _set(name: str, text: str) -> Callable[[Box], object]:
    return lambda box: box.environ.update({name: text})


def _on_arm(box: Box) -> None:
    box.arch = "arm"


def _smi(text: str, status: int = 0) -> Callable[[Box], object]:
    return lambda box: box.npu_smi(text, status)


def _all(*changes: Callable[[Box], object]) -> Callable[[Box], object]:
    return lambda box: [change(box) for change in changes]


def _where_the_image_has_it(box: Box) -> None:
    box.not_sourced()
    box.environ.pop("ATB_HOME_PATH")
    ascend = box.path("usr/local/Ascend")
    (ascend / "cann").mkdir()
    for name in ("ascend-toolkit", "nnal"):
        (ascend / name).rename(ascend / "cann" / name)
    toolkit = ascend / "cann" / "ascend-toolkit"
    (toolkit / "latest").unlink()
    (toolkit / "latest").symlink_to(next(each for each in toolkit.iterdir() if each.is_dir()))


def _old_libstdcxx(box: Box) -> None:
    box.library("needs15.so", "site/torch_npu/lib/libtorch_npu.so")
    box.library("stdc++13.so", "usr/lib/libstdc++.so.6")


def _newer_libstdcxx_elsewhere(box: Box) -> None:
    _old_libstdcxx(box)
    box.path("usr/lib/libstdc++.so.6").unlink()
    box.library("stdc++13.so", "usr/local/Ascend/old/libstdc++.so.6")
    box.library("stdc++15.so", "usr/lib/libstdc++.so.6")
    box.prepend("LD_LIBRARY_PATH", "usr/local/Ascend/old")


def _atb_missing(box: Box) -> None:
    box.library("vllm_ascend.so", "site/vllm_ascend/vllm_ascend_C.cpython-311.so")


def _triton_overwrote(box: Box) -> None:
    box.install("triton", "3.2.0")
    box.write("site/triton/__init__.py", "")


def _triton_last(box: Box) -> None:
    """pip leaves the folder of the backend, which upstream's triton does not know."""
    _both_tritons(box, last="upstream's")


def _both_tritons(box: Box, last: str = "triton-ascend's") -> None:
    box.install("triton", "3.5.0")
    for package, text in (("triton-3.5.0", "upstream's"), ("triton_ascend-3.2.1", "triton-ascend's")):
        hashed = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        box.write(f"site/{package}.dist-info/RECORD", f"triton/runtime/jit.py,sha256={hashed},{len(text)}\n")
    box.write("site/triton/runtime/jit.py", last)
    box.write("site/triton/backends/ascend/driver.py", "")


def _mindspeed_checkout(commit: str) -> Callable[[Box], object]:
    def change(box: Box) -> None:
        box.write("MindSpeed/.git/HEAD", f"{commit}\n")
        box.install("mindspeed", "0.12.1", url=f"file://{box.path('MindSpeed')}", dir_info={"editable": True})

    return change


def _driver(version: str) -> Callable[[Box], object]:
    return lambda box: (box.npu_smi(smi.a2(driver=version)), box.driver(version))


def _port_taken(box: Box) -> None:
    row = "   0: 00000000:EA63 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1"
    box.write("proc/net/tcp", f"  sl  local_address rem_address   st\n{row}\n")


def _field(name: str, value: object) -> Callable[[Box], object]:
    return lambda box: setattr(box, name, value)


def _variable(name: str, text: str, severity: Severity, found: str, fix: str = "", pin: str = "v0.7.1") -> Case:
    return Case(f"{name}={text}", pin, _set(name, text), {name: severity}, found, fix or f"unset {name}")


def _package(
    pin: str, name: str, version: str, alarms: Severity | dict[str, Severity], fix: str, found: str = ""
) -> Case:
    """Return a case with another version of a package, or without it."""
    change = _install(name, version) if version else _uninstall(name)
    said = alarms if isinstance(alarms, dict) else {name: alarms}
    return Case(f"{name} {version or 'missing'} at {pin}", pin, change, said, found or version or "not installed", fix)


NO_MODULE = "dcmi module initialize failed. ret is -8005\n"
CASES = (
    Case(
        "the wheel of torch_npu without CANN",
        "v0.7.1",
        Box.no_cann,
        {"cann": ERROR, "nnal": WARNING, "torch_npu-libraries": ERROR},
        "no CANN",
        "install the CANN toolkit, its kernels, and nnal of CANN 8.5.0",
    ),
    Case(
        "transformers 4.55 where verl-npu is off",
        "796871d7",
        _all(_install("transformers", "4.55.4"), _set("VERL_NPU", "off")),
        {"transformers": ERROR, "ways-in": WARNING},
        "4.55.4",
        "pip install transformers==4.52.4",
    ),
    Case(
        "transformers 4.55 without the feature attention",
        "796871d7",
        _all(_install("transformers", "4.55.4"), _set("VERL_NPU_DISABLE", "fleet, attention")),
        {"transformers": ERROR},
        "4.55.4",
        "pip install transformers==4.52.4",
    ),
    Case(
        "a shell that has not sourced set_env.sh",
        "ccd7d934",
        Box.not_sourced,
        {"cann": ERROR, "torch_npu-libraries": ERROR},
        "its environment is not set up",
        "ascend-toolkit/set_env.sh",
    ),
    Case(
        "a shell of the published image that has not sourced set_env.sh",
        IMAGE,
        _where_the_image_has_it,
        {"cann": ERROR, "torch_npu-libraries": ERROR, "nnal": WARNING},
        "8.3.RC1 in ",
        "Ascend/cann/ascend-toolkit/set_env.sh",
    ),
    Case(
        "libraries without ASCEND_HOME_PATH",
        "v0.6.1",
        lambda box: box.environ.pop("ASCEND_HOME_PATH"),
        {"cann": WARNING},
        "without ASCEND_HOME_PATH",
        "set_env.sh",
    ),
    Case(
        "ASCEND_HOME_PATH names no folder",
        "v0.8.0",
        _set("ASCEND_HOME_PATH", "/nowhere"),
        {"cann": ERROR},
        "/nowhere, which is not a folder",
        "CANN 9.0.0",
    ),
    Case(
        "the CANN of another pin",
        "v0.7.1",
        lambda box: (box.environ.update(LD_LIBRARY_PATH=""), box.driver("25.5.0"), box.cann("8.3.RC1")),
        {"cann": WARNING},
        "8.3.RC1",
        "CANN 8.5.0",
    ),
    Case(
        "nnal that is not set up",
        "v0.7.0",
        lambda box: box.environ.pop("ATB_HOME_PATH"),
        {"nnal": WARNING},
        "its environment is not set up",
        "nnal/atb/set_env.sh",
    ),
    Case(
        "vllm-ascend's library without ATB",
        "v0.7.1",
        _atb_missing,
        {"vllm-ascend-libraries": ERROR},
        "no libatb.so",
        "nnal/atb/set_env.sh",
    ),
    Case(
        "the driver's library that is not mounted",
        "v0.6.1",
        lambda box: box.path("usr/local/Ascend/driver/lib64/driver/libascend_hal.so").rename(box.path("hal")),
        {"torch_npu-libraries": ERROR},
        "no libascend_hal.so, which libascendcl.so needs",
        "driver/lib64/driver",
    ),
    Case(
        "a libstdc++ that is too old",
        "v0.8.0",
        _old_libstdcxx,
        {"torch_npu-libraries": ERROR},
        "no CXXABI_1.3.15 in",
        "libstdcxx-ng",
    ),
    Case(
        "a newer libstdc++ behind an old one",
        "v0.8.0",
        _newer_libstdcxx_elsewhere,
        {"torch_npu-libraries": WARNING},
        "no CXXABI_1.3.15 in",
        "export LD_LIBRARY_PATH=",
    ),
    Case("an old driver", "v0.8.0", _driver("24.1.rc3"), {"driver": WARNING}, "24.1.rc3", "26.0.rc1 or later"),
    Case(
        "no NPU in the container",
        "v0.7.1",
        Box.no_npus,
        {"npus": ERROR},
        "the command npu-smi is missing",
        "--device /dev/davinci0",
    ),
    Case(
        "an npu-smi without a driver",
        "v0.7.1",
        _all(_smi(NO_MODULE, 255), lambda box: box.path("dev/davinci_manager").unlink()),
        {"npus": ERROR},
        "dcmi module initialize failed. ret is -8005",
        "-v /usr/local/Ascend/driver",
    ),
    Case(
        "a sick card of A2",
        "v0.6.1",
        _smi(smi.a2(health={3: "Alarm"})),
        {"npus": ERROR},
        "NPU 3: Alarm (of 8)",
        "npu-smi info -t health -i 3",
    ),
    Case(
        "a sick chip of A3",
        "v0.7.0",
        _smi(smi.a3(health={5: "Critical"})),
        {"npus": ERROR},
        "NPU 2: Critical (of 16)",
        "npu-smi info -t health -i 2",
        npus="a3",
    ),
    Case(
        "a card with a minor alarm",
        "v0.6.1",
        _smi(smi.a2(health={0: "Warning"})),
        {"npus": WARNING},
        "NPU 0: Warning",
        "npu-smi info -t health -i 0",
    ),
    Case(
        "memory that a process holds",
        "v0.7.1",
        _smi(smi.held(smi.a2(), 1, 4711, "python3", 54000)),
        {"npu-memory": WARNING},
        "NPU 1: python3 (4711) 54000 MB",
        "kill 4711",
    ),
    Case(
        "memory that another container holds",
        "v0.7.1",
        _smi(smi.a3(used=57784)),
        {"npu-memory": WARNING},
        "57784 of 65536 MB",
        "npu-smi info",
        npus="a3",
    ),
    Case(
        "a model that verl does not train on",
        "v0.7.1",
        _smi(smi.a2().replace("910B2", "310P3")),
        {"npus": ERROR},
        "310P3",
        "Ascend A2, A3, or A5",
    ),
    Case(
        "no rollout engine",
        "v0.6.1",
        _uninstall("vllm", "vllm-ascend"),
        {"engine-pair": WARNING},
        "no rollout engine",
        "VLLM_TARGET_DEVICE=empty pip install -e vllm && git clone",
    ),
    Case(
        "a tensordict that the documents do not name for ARM",
        "796871d7",
        _all(_field("arch", "arm"), _install("tensordict", "0.9.1")),
        {"tensordict": WARNING},
        "0.9.1",
        "pip install tensordict==0.8.3",
    ),
    Case(
        "triton over triton-ascend",
        "v0.7.1",
        _triton_overwrote,
        {"triton": ERROR},
        "has overwritten triton-ascend 3.2.0",
        "pip uninstall -y triton triton-ascend && pip install triton-ascend==3.2.0",
    ),
    Case(
        "triton over triton-ascend, whose backend is left",
        "v0.8.0",
        _triton_last,
        {"triton": ERROR},
        "3.5.0 has overwritten triton-ascend 3.2.1",
        "pip uninstall -y triton triton-ascend && pip install triton-ascend==3.2.1",
    ),
    Case(
        "a MindSpeed of another commit",
        "v0.7.0",
        _mindspeed_checkout("1cdd0abd75e40936ad31721c092f57c695dd72c4"),
        {"mindspeed": WARNING},
        "0.12.1 at 1cdd0abd",
        "checkout f2b0977e",
    ),
    Case(
        "the same where no vllm-ascend is: the job ends all the same",
        "v0.7.1",
        _all(_uninstall("vllm-ascend", "vllm"), _set("VLLM_ASCEND_ENABLE_NZ", "1")),
        {"VLLM_ASCEND_ENABLE_NZ": ERROR, "engine-pair": WARNING},
        "'1'",
        "export VLLM_ASCEND_ENABLE_NZ=0",
    ),
    Case(
        "CPUs that torch_npu binds before vllm-ascend does",
        "v0.9.1",
        _all(_on_arm, _set("CPU_AFFINITY_CONF", "1")),
        {"CPU_AFFINITY_CONF": WARNING},
        "a second binding",
        "unset CPU_AFFINITY_CONF",
    ),
    Case(
        "a port of HCCL that is taken",
        "v0.7.1",
        _port_taken,
        {"hccl-ports": WARNING},
        "60003",
        "export HCCL_HOST_SOCKET_PORT_RANGE=auto",
    ),
    Case(
        "a container with Docker's shared memory",
        "v0.7.1",
        _field("shared_memory", 64 << 20),
        {"shared-memory": WARNING},
        "64 MiB",
        "docker run --ipc=host",
    ),
    Case("few open files", "v0.7.1", _field("open_files", 1024), {"open-files": WARNING}, "1024", "ulimit -n 65536"),
    Case(
        "a Python of another pin",
        "v0.8.0",
        _field("python", "3.12.3"),
        {"python": WARNING},
        "3.12.3",
        "python=3.11",
    ),
    Case(
        "torch that does not load its backends",
        "v0.7.1",
        _set("TORCH_DEVICE_BACKEND_AUTOLOAD", "0"),
        {"ways-in": ERROR},
        "TORCH_DEVICE_BACKEND_AUTOLOAD=0",
        "unset TORCH_DEVICE_BACKEND_AUTOLOAD",
    ),
    Case(
        "a verl that the patches do not fit",
        "v0.7.1",
        _field("judged", Judged("v0.7.1", False, ("fleet (drifted)",))),
        {"patches": ERROR},
        "fleet (drifted)",
        "verl-npu check --diff",
    ),
    _variable("VLLM_ASCEND_ENABLE_NZ", "1", ERROR, "'1'", fix="export VLLM_ASCEND_ENABLE_NZ=0"),
    _variable("PYTORCH_NPU_ALLOC_CONF", "expandable_segments:True", WARNING, "does not support"),
    _variable("ASCEND_RT_VISIBLE_DEVICES", "0,1,2,3,4,5,6,7,8", ERROR, "8, but there are 8 NPUs here"),
    _variable("ASCEND_RT_VISIBLE_DEVICES", "0-7", ERROR, "not numbers"),
    _variable("TASK_QUEUE_ENABLE", "3", WARNING, "'3'", pin="v0.8.0"),
    _variable("ASCEND_LAUNCH_BLOCKING", "1", WARNING, "'1'", pin="v0.8.0"),
    _variable("VLLM_USE_V1", "0", ERROR, "V0 engine, which vLLM 0.11 and newer does not have"),
    _variable(
        "VLLM_ATTENTION_BACKEND", "XFORMERS", WARNING, "an attention that vllm-ascend does not have", pin="v0.7.0"
    ),
    _variable("HCCL_SOCKET_IFNAME", "enp67s0f5", WARNING, "no such interface; this host has eth0, lo"),
    _variable("GLOO_SOCKET_IFNAME", "ens1", ERROR, "no such interface"),
    _variable("HCCL_CONNECT_TIMEOUT", "1h", WARNING, "not a number", fix="export HCCL_CONNECT_TIMEOUT=1500"),
    _variable("HCCL_EXEC_TIMEOUT", "1E100", WARNING, "out of range", fix="export HCCL_EXEC_TIMEOUT=3600"),
    _variable("HCCL_HOST_SOCKET_PORT_RANGE", "60050-60000", WARNING, "not a range of ports"),
    _variable("NPU_FA2_SPARSE_MODE", "1", ERROR, "'1'"),
    _variable("OMP_PROC_BIND", "TRUE", WARNING, "a request to pin each process", fix="export OMP_PROC_BIND=false"),
    _variable("LD_PRELOAD", "/usr/local/lib/libjemalloc.so.2.not-here", WARNING, "no such file"),
    _variable("VERL_NPU_STRICT", "perhaps", ERROR, "perhaps"),
    _package("796871d7", "transformers", "4.55.4", WARNING, "pip install transformers==4.52.4"),
    _package("ccd7d934", "transformers", "4.54.1", ERROR, "pip install transformers==4.57.6"),
    _package("v0.6.1", "transformers", "4.51.3", ERROR, "pip install transformers==4.52.4"),
    _package(
        "v0.7.1",
        "torch_npu",
        "2.7.1",
        {"torch-pair": ERROR, "torch_npu": WARNING},
        "pip install torch==2.7.1 torch_npu==2.7.1",
        "torch 2.8.0 with torch_npu 2.7.1",
    ),
    _package(
        "v0.8.0",
        "torch",
        "2.10.0+cu128",
        {"torch-pair": ERROR, "torch": WARNING},
        "pip install torch==2.9.0 torch_npu==2.9.0.post2",
        "torch 2.10.0+cu128",
    ),
    _package(
        "ccd7d934",
        "torch",
        "2.7.0",
        {"torch-pair": WARNING, "torch": WARNING},
        "pip install torch==2.7.1",
        "torch 2.7.0",
    ),
    _package("v0.7.1", "torch_npu", "", ERROR, "pip install torch_npu==2.8.0"),
    _package(
        "v0.7.1",
        "vllm",
        "0.11.0+empty",
        {"engine-pair": WARNING, "vllm": WARNING},
        "checkout v0.13.0 && VLLM_TARGET_DEVICE=empty pip install -e vllm",
        "vllm 0.11.0+empty with vllm-ascend 0.13",
    ),
    _package(
        "v0.6.1",
        "vllm",
        "",
        {"engine-pair": ERROR},
        "checkout v0.9.1 && VLLM_TARGET_DEVICE=empty pip install -e vllm",
        "without vllm",
    ),
    _package(
        "v0.6.1",
        "vllm-ascend",
        "",
        {"engine-pair": WARNING},
        "checkout v0.9.1 && pip install -e vllm-ascend",
        "without vllm-ascend",
    ),
    _package("v0.6.1", "tensordict", "0.9.0", WARNING, "pip install 'tensordict>=0.8.0,<=0.10.0,!=0.9.0'"),
    _package("v0.7.1", "numpy", "2.2.6", WARNING, "pip install 'numpy<2.0.0'"),
    _package("v0.7.0", "einops", "", WARNING, "pip install einops"),
    _package("v0.6.1", "ray", "2.54.0", WARNING, "pip install ray==2.46.0"),
    _package("v0.7.1", "ray", "", ERROR, "pip install 'ray>=2.41.0'"),
    _package("v0.9.1", "TransferQueue", "", WARNING, "pip install TransferQueue==0.1.8"),
    _package("v0.7.1", "flash-attn", "2.8.3", WARNING, "uninstall -y flash-attn"),
    _package("v0.6.1", "liger-kernel", "0.6.4", WARNING, "uninstall -y liger-kernel"),
    _package(
        "v0.7.1",
        "triton-ascend",
        "3.2.1",
        {"triton-ascend": WARNING, "triton-cann": WARNING},
        "pip install triton-ascend==3.2.0",
    ),
    _package(
        "ccd7d934",
        "triton",
        "3.3.1",
        WARNING,
        "pip uninstall -y triton triton-ascend && pip install triton-ascend==3.2.0rc4",
        "3.3.1 together with triton-ascend 3.2.0rc4",
    ),
    _package(
        "v0.9.0",
        "mindspeed",
        "0.12.1",
        {"megatron-pair": WARNING, "mindspeed": WARNING},
        "git -C Megatron-LM checkout core_v0.12.1",
        "megatron-core 0.16.0 with MindSpeed 0.12.1",
    ),
    _package("v0.6.1", "megatron-core", "", {"megatron-pair": WARNING}, "PYTHONPATH", "without Megatron"),
    _package("v0.6.1", "mindspeed", "", {"megatron-pair": WARNING}, "pip install -e MindSpeed", "without MindSpeed"),
    _package(
        "v0.7.1",
        "verl-npu",
        "0.1.0",
        {"ways-in": ERROR},
        "pip install --force-reinstall --no-deps CHECKOUT_OR_WHEEL_OF_VERL_NPU",
        "no entry point",
    ),
)


@pytest.mark.parametrize("case", CASES, ids=[case.title.replace(" ", "-") for case in CASES])
def test_a_wrong_environment_is_reported_with_its_fix(make: Make, case: Case) -> None:
    box = make(case.pin, case.npus)
    case.change(box)
    findings = examine(box.site())
    assert alarms(findings) == case.alarms
    first = next(each for each in findings if each.code == next(iter(case.alarms)))
    assert case.found in first.found
    assert case.fix in first.fix
    assert first.expected
    assert first.why


@pytest.mark.parametrize(("arch", "version"), [("x86", "0.9.1"), ("arm", "0.8.3"), ("", "0.9.1")])
def test_the_tensordict_that_the_documents_name_for_a_processor_is_no_alarm(
    make: Make, arch: str, version: str
) -> None:
    box = make("796871d7")
    box.arch = arch
    box.install("tensordict", version)
    assert alarms(examine(box.site())) == {}


def test_triton_ascend_over_the_triton_that_it_brings_is_no_alarm(make: Make) -> None:
    box = make("v0.7.1")
    box.install("triton-ascend", "3.2.0", requires=("triton==3.2.0; python_version < '3'", "triton==3.5.0"))
    box.install("triton", "3.5.0")
    box.write("site/triton/backends/ascend/driver.py", "")
    (finding,) = (each for each in examine(box.site()) if each.code == "triton")
    assert (finding.severity, finding.found) == (OK, "3.5.0, which triton-ascend 3.2.0 requires")
    box.install("triton", "3.4.0")
    assert alarms(examine(box.site())) == {"triton": WARNING}


def test_upstreams_triton_below_triton_ascend_is_no_alarm(make: Make) -> None:
    box = make("v0.8.0")
    _both_tritons(box)
    assert alarms(examine(box.site())) == {}


def _triton_cann(box: Box) -> Finding:
    return next(each for each in examine(box.site()) if each.code == "triton-cann")


def test_the_cann_of_a_triton_ascend_is_named_by_its_guide(make: Make) -> None:
    box = make("v0.7.1")
    finding = _triton_cann(box)
    assert (finding.severity, finding.found) == (OK, "triton-ascend 3.2.0 with CANN 8.5.0")
    box.install("triton-ascend", "3.2.0rc4")
    finding = _triton_cann(box)
    assert finding.severity is WARNING
    assert "CANN 8.3.RC1 or 8.3.RC2" in finding.expected
    assert finding.fix == "pip install triton-ascend==3.2.0"
    # The doctor says nothing of a release for which no document was read.
    box.install("triton-ascend", "3.2.9")
    assert _triton_cann(box).severity is SKIPPED

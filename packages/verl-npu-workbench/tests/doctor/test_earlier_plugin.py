"""The doctor finds the earlier plugin of the same name, as its setup.py leaves an environment, and names the fix.

Its files, and those that it edits, are made up.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from verl_npu_workbench.doctor import examine

from verl_npu.findings import Finding, Severity

from .box import Box

PIN = "796871d7"
HOOK = """
# NPU acceleration support added by mindspeed-rl plugin
from verl.utils.device import is_npu_available

if is_npu_available:
    import verl_npu
"""
KERNELS = "utils/kernel/linear_cross_entropy.py"
FP8 = "model_executor/layers/quantization/utils/fp8_utils.py"
MOE = "model_executor/layers/fused_moe/fused_moe.py"
CHANGE_OVER = "pip uninstall -y verl_npu && pip install CHECKOUT_OR_WHEEL_OF_VERL_NPU"


@pytest.fixture
def box(make: Callable[..., Box]) -> Box:
    """Return a right environment with this package, verl and vLLM."""
    made = make(PIN)
    made.write("site/verl_npu/activation.py", "")
    made.write("site/verl/__init__.py", "import logging\n")
    made.write(f"site/verl/{KERNELS}", "from . import kernels\n")
    made.write("site/vllm/__init__.py", "")
    made.write(f"site/vllm/{FP8}", "from typing import Any, Callable, Optional\nx: Optional[list[int]]\n")
    made.write(f"site/vllm/{MOE}", "from typing import Any, Callable, Optional\nx: Optional[list[int]]\n")
    return made


def earlier(box: Box, folder: str) -> None:
    box.write(f"{folder}/verl_npu/plugin.py", "")


def found(box: Box, site_first: bool = True, *more: str) -> list[Finding]:
    site = box.site()
    folders = tuple(str(box.path(each)) for each in more)
    path = (*site.path, *folders) if site_first else (*folders, *site.path)
    changed = type(site)(**{**vars(site), "path": path})
    return examine(changed, only=["earlier-plugin"])


def only(findings: list[Finding]) -> Finding:
    (finding,) = findings
    return finding


def test_without_it_nothing_is_said(box: Box) -> None:
    finding = only(found(box))
    assert (finding.severity, finding.found) == (Severity.OK, "no trace of the earlier plugin")


def test_its_package_before_this_one_is_an_error(box: Box) -> None:
    earlier(box, "rl-plugin")
    finding = only(found(box, False, "rl-plugin"))
    assert finding.severity is Severity.ERROR
    assert finding.found.endswith("rl-plugin/verl_npu, the earlier plugin, is on Python's path, before this package")
    assert finding.fix == CHANGE_OVER


def test_its_package_behind_this_one_is_a_warning_with_the_file_that_puts_it_on_the_path(box: Box) -> None:
    earlier(box, "rl-plugin")
    box.write("site/easy-install.pth", f"{box.path('rl-plugin')}\n")
    finding = only(found(box, True, "rl-plugin"))
    assert finding.severity is Severity.WARNING
    assert finding.found.endswith(f"by {box.path('site/easy-install.pth')}, after this package")


def test_pythonpath_is_in_front_even_where_this_command_did_not_look_at_it(box: Box) -> None:
    earlier(box, "rl-plugin")
    box.environ["PYTHONPATH"] = str(box.path("rl-plugin"))
    finding = only(found(box))
    assert finding.severity is Severity.ERROR
    assert finding.fix == f"remove {box.path('rl-plugin')} from PYTHONPATH"


def test_files_of_both_in_one_folder_are_an_error(box: Box) -> None:
    earlier(box, "site")
    finding = only(found(box))
    assert finding.severity is Severity.ERROR
    assert finding.found.endswith("site/verl_npu has files of the earlier plugin and of this package")
    assert f"rm -r {box.path('site/verl_npu')}" in finding.fix


def test_its_distribution_is_not_taken_for_this_package(box: Box) -> None:
    box.install("verl_npu", "0.0.1")
    box.uninstall("verl-npu")
    box.install("verl_npu", "0.0.1")
    findings = examine(box.site(), only=["ways-in", "earlier-plugin"])
    assert [(each.code, each.severity) for each in findings] == [
        ("ways-in", Severity.WARNING),
        ("earlier-plugin", Severity.ERROR),
    ]
    assert findings[0].found == "verl-npu is on the path but not installed"
    assert "(distribution verl_npu 0.0.1) is installed in" in findings[1].found
    assert findings[1].fix == CHANGE_OVER


@pytest.mark.parametrize(
    ("file", "text", "what"),
    [
        ("verl/__init__.py", f"import logging\n{HOOK}", "imports verl_npu at its end"),
        ("verl/__init__.py", HOOK.replace("mindspeed-rl", "MindSpeed RL"), "imports verl_npu at its end"),
        (f"verl/{KERNELS}", "# from . import kernels\n", "`from . import kernels` is commented out"),
        (f"verl/{KERNELS}", "def f():\n#     from . import kernels\n", "`from . import kernels` is commented out"),
        (f"vllm/{FP8}", "from typing import Any, Callable, Optional, List\nx: List[int]\n", "`list` is `List`"),
        (f"vllm/{FP8}", "from typing import Any, Callable, List\nx: List[int]\n", "`list` is `List`"),
        (f"vllm/{MOE}", "import typing\nx: List[int]\n", "`list` is `List`"),
    ],
)
def test_each_edit_of_its_setup_is_seen(box: Box, file: str, text: str, what: str) -> None:
    box.write(f"site/{file}", text)
    finding = only(found(box))
    assert finding.severity is Severity.WARNING
    assert finding.found == f"the earlier plugin edited in {box.path('site')}: {file} ({what})"


@pytest.mark.parametrize(
    "text",
    [
        "from typing import Any, Callable, Dict, List, Optional\nx: List[int]\n",
        "from typing import Any, Callable, List\nx: List[int] = list()\n",
        "from typing import List\nx: List[int]\n",
        "from typing import (\n    Any,\n    List,\n)\nx: List[int]\n",
    ],
)
def test_a_vllm_that_says_list_by_itself_is_not_taken_for_edited(box: Box, text: str) -> None:
    box.write(f"site/vllm/{FP8}", text)
    assert only(found(box)).severity is Severity.OK


def test_a_hook_line_that_the_user_put_there_is_right(box: Box) -> None:
    box.write("site/verl/__init__.py", "import verl_npu\nimport logging\n")
    finding = only(found(box))
    assert finding.severity is Severity.OK
    assert finding.found.endswith("verl/__init__.py:1 imports this package")


@pytest.mark.parametrize(
    ("version", "url", "fix"),
    [
        ("0.6.1", {}, "pip install --force-reinstall --no-deps verl==0.6.1"),
        (
            "0.5.0.dev0",
            {"url": "https://example.invalid/verl", "vcs_info": {"vcs": "git", "commit_id": "796871d7"}},
            "pip install --force-reinstall --no-deps 'verl @ git+https://example.invalid/verl@796871d7'",
        ),
        (
            "0.5.0.dev0",
            {"url": "file:///a/verl", "dir_info": {}},
            "pip install --force-reinstall --no-deps /a/verl",
        ),
        ("0.5.0.dev0", {}, "restore verl/__init__.py from the installed revision of verl"),
    ],
)
def test_an_installed_verl_is_restored_from_where_it_came(box: Box, version: str, url: dict, fix: str) -> None:
    box.install("verl", version, **url)
    box.write("site/verl/__init__.py", HOOK)
    assert only(found(box)).fix == fix


def test_a_checkout_is_restored_by_git(box: Box) -> None:
    box.write("verl/verl/__init__.py", HOOK)
    box.path("verl/.git").mkdir()
    box.path("site/verl/__init__.py").unlink()
    box.install("verl", "0.5.0.dev0", url=f"file://{box.path('verl')}", dir_info={"editable": True})
    assert only(found(box)).fix == f"git -C {box.path('verl')} checkout -- verl/__init__.py"


def test_a_vllm_without_kernels_is_installed_so_again(box: Box) -> None:
    box.install("vllm", "0.10.1+empty")
    box.write(f"site/vllm/{FP8}", "import typing\nx: List[int]\n")
    fix = "VLLM_TARGET_DEVICE=empty pip install --force-reinstall --no-deps --no-binary vllm vllm==0.10.1"
    assert only(found(box)).fix == fix

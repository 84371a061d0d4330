"""The real MindSpeed on virtual NPUs: imported, asked, refused; a refusal leaves torch and Megatron as they were.

Needs VERL_NPU_UPSTREAMS, a folder with

    mindspeed-<revision>/   a checkout of github.com/Ascend/MindSpeed
    megatron-<version>/     pip install --no-deps --target megatron-<version> megatron-core==<version> einops scipy
    triton/                 pip install --no-deps --target triton triton (core_r0.16.0 imports it)
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from virtual_ascend.testing import environment

from .conftest import MEGATRON, REVISIONS

pytestmark = [pytest.mark.virtual, pytest.mark.upstream]

PROGRAM = Path(__file__).with_name("identity.py")
SECTION = {"tensor_model_parallel_size": 2, "sequence_parallel": True, "use_distributed_optimizer": True}
CASES: dict[str, dict[str, Any]] = {
    "an unknown key": {"overrides": {"use_flash_atn": True}},
    "a text that is true in place of False": {"overrides": {"moe_grouped_gemm": "no"}},
    "no flash attention": {"overrides": {"use_flash_attn": False}},
    "two sizes of context parallelism": {
        "overrides": {"context_parallel_size": 4},
        "section": {"context_parallel_size": 2},
    },
    "a swapped optimizer that is not distributed": {
        "overrides": {"swap_optimizer": True},
        "section": {"use_distributed_optimizer": False},
    },
    "latent attention without its sizes": {"overrides": {"multi_head_latent_attention": True}},
    "mc2 without sequence parallelism": {"overrides": {"use_ascend_mc2": True}},
    "recomputation without its method": {"overrides": {"recompute_granularity": "full"}},
    "fused permutation with allgather": {
        "overrides": {
            "use_fused_moe_token_permute_and_unpermute": True,
            "moe_token_dispatcher_type": "allgather",
        }
    },
}
RAISING: dict[str, dict[str, Any]] = {
    "a feature that needs megatron.training": {"overrides": {"npu_deterministic": True}},
    "a feature that breaks when everything is applied": {"break": True},
}
SECOND: dict[str, dict[str, Any]] = {
    "the same": {"first": [{"hidden_dropout": 0.1}], "overrides": {"hidden_dropout": 0.1}},
    "another model": {"first": [{"hidden_dropout": 0.1, "layernorm_epsilon": 1e-3}], "overrides": {}},
    "another process": {"first": [{}], "overrides": {"moe_grouped_gemm": True}},
    "its own recomputation": {
        "first": [{}],
        "overrides": {"recompute_method": "uniform", "recompute_granularity": "full", "recompute_num_layers": 1},
    },
    "recomputation by MindSpeed": {
        "first": [{}],
        "overrides": {"recompute_method": "block", "recompute_granularity": "full", "recompute_num_layers": 1},
    },
}
GOOD: dict[str, dict[str, Any]] = {
    "mbridge and a virtual pipeline": {
        "overrides": {},
        "section": {"use_mbridge": True, "virtual_pipeline_model_parallel_size": 2},
    },
    "mc2 in its section": {"overrides": {"use_ascend_mc2": True}, "section": SECTION},
    "grouped gemm": {"overrides": {"moe_grouped_gemm": True}, "section": SECTION},
    "context parallelism": {"overrides": {}, "section": {**SECTION, "context_parallel_size": 2}},
    "swapped optimizer": {"overrides": {"swap_optimizer": True}, "section": SECTION},
    "after a refusal": {"overrides": {"use_flash_attn": True}},
}
ALL = {**CASES, **RAISING, **SECOND, **GOOD}


@pytest.fixture(scope="module", params=REVISIONS)
def answers(request: pytest.FixtureRequest) -> Callable[[str], dict[str, Any]]:
    """Return a function that looks up the real MindSpeed's answer in a case; all cases run once for a revision."""
    pytest.importorskip("verl")
    revision = request.param
    folder = Path(os.environ.get("VERL_NPU_UPSTREAMS", "none"))
    wanted = [folder / f"mindspeed-{revision}", folder / f"megatron-{MEGATRON[revision]}"]
    wanted += [folder / "triton"] if revision == "core_r0.16.0" else []
    for path in wanted:
        if not path.is_dir():
            pytest.skip(f"set VERL_NPU_UPSTREAMS to a folder with {', '.join(p.name + '/' for p in wanted)}")
    paths = [*map(str, wanted), os.environ.get("PYTHONPATH", "")]
    result = subprocess.run(
        [sys.executable, str(PROGRAM)],
        input="".join(json.dumps(case) + "\n" for case in ALL.values()),
        env=environment(PYTHONPATH=os.pathsep.join(filter(None, paths))),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    lines = [line.removeprefix("ANSWER ") for line in result.stdout.splitlines() if line.startswith("ANSWER ")]
    assert len(lines) == 1 + len(ALL), result.stdout[-3000:] + result.stderr[-3000:]
    given = dict(zip(["import", *ALL], map(json.loads, lines), strict=True))
    given["import"]["wanted"] = revision
    return given.__getitem__


def test_it_is_imported_and_is_the_recorded_revision(answers) -> None:
    answer = answers("import")
    # f6688 accepts the same overrides as 1cdd0abd75.
    wanted = {"f6688": "1cdd0abd75"}.get(answer["wanted"], answer["wanted"])
    assert (answer["revision"], answer["exact"]) == (wanted, True)
    assert {
        "refuse_mindspeed_without_its_dependencies",
        "check_overrides_given_to_mindspeed",
        "remove_mindspeeds_empty_flash_attn",
    } <= set(answer["applied"])


def test_no_empty_flash_attn_is_left_and_upstream_stays_on_the_npu(answers) -> None:
    answer = answers("import")
    assert answer["flash_attn"] is False
    assert (answer["cuda"], answer["device"]) == (True, ["npu", False, True])


def test_a_repatch_loses_none_of_mindspeeds_own_patches(answers) -> None:
    assert answers("import")["lost"] == []


def test_a_gated_delta_rule_of_mindspeed_is_named(answers) -> None:
    answer = answers("import")
    replaced = "gated_delta_rule.chunk_gated_delta_rule was replaced by the function of mindspeed.core.ssm."
    # It replaces the function even if flash-linear-attention is not installed. No other revision does.
    assert (replaced in answer["kernels"]) == (answer["wanted"] == "core_r0.16.0"), answer["kernels"]


@pytest.mark.parametrize("name", CASES)
def test_a_bad_combination_is_refused_and_nothing_has_changed(answers, name: str) -> None:
    answer = answers(name)
    assert (answer["error"], answer["changes"]) == ("JobSettingError", []), answer


@pytest.mark.parametrize("name", RAISING)
def test_where_mindspeed_raises_everything_is_put_back(answers, name: str) -> None:
    answer = answers(name)
    assert (answer["error"], answer["changes"]) == ("ApplyError", []), answer
    assert "verl-npu has undone all changes" in answer["text"]


def test_a_second_worker_that_asks_for_the_same_changes_nothing(answers) -> None:
    answer = answers("the same")
    assert (answer["error"], answer["changes"]) == ("", [])


def test_a_second_worker_inherits_none_of_the_firsts_overrides(answers) -> None:
    answer = answers("another model")
    assert (answer["error"], answer["changes"]) == ("", ["arguments"])
    assert "layernorm_epsilon" not in answer["settings"]
    assert "hidden_dropout" not in answer["settings"]


def test_a_second_worker_cannot_change_what_is_patched(answers) -> None:
    answer = answers("another process")
    assert (answer["error"], answer["changes"]) == ("JobSettingError", [])
    assert "moe_grouped_gemm=True" in answer["text"]
    assert "its own resource pool" in answer["text"]


def test_a_second_worker_may_recompute_where_the_first_does_not(answers) -> None:
    answer = answers("its own recomputation")
    assert (answer["error"], answer["changes"]) == ("", ["arguments"])
    assert answer["settings"]["recompute_method"] == "uniform"


def test_a_second_worker_cannot_bring_what_mindspeed_asks_of_the_whole_process(answers) -> None:
    answer = answers("recomputation by MindSpeed")
    assert (answer["error"], answer["changes"]) == ("JobSettingError", [])
    assert "recompute_method=block" in answer["text"]


@pytest.mark.parametrize("name", GOOD)
def test_what_goes_together_is_applied(answers, name: str) -> None:
    answer = answers(name)
    assert answer["error"] == "", answer["text"]
    assert answer["settings"]["use_flash_attn"] is True

"""Kernels of our own are compiled by Ascend's compiler: sound ones pass, and each seeded mistake is found."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from verl_npu_workbench.kernels import judging, targets
from verl_npu_workbench.kernels.toolchain import Soc, Toolchain
from verl_npu_workbench.kernels.verdict import Origin, Stage, Verdict

from .conftest import ADD, Judge

TUNED = ADD.replace(
    "@triton.jit\n",
    "@triton.autotune(configs=[triton.Config({'BLOCK': b}) for b in (65536, 32768, 4096)], key=['n'])\n@triton.jit\n",
).replace(", BLOCK=1024)", ")")


@pytest.mark.parametrize("soc", list(Soc))
def test_a_sound_kernel_compiles_for_each_generation(judge: Judge, soc: Soc) -> None:
    (found,) = judge(ADD, soc)
    assert found.best.verdict is Verdict.COMPILES
    assert found.arguments is not None
    assert found.arguments.origin is Origin.GUESSED
    assert found.arguments.constants == {"BLOCK": 1024}


@pytest.mark.parametrize(("soc", "there"), [(Soc.A2, 1572864), (Soc.A3, 1572864), (Soc.ASCEND_950, 2031616)])
def test_a_block_that_is_too_large_overflows(judge: Judge, soc: Soc, there: int) -> None:
    (found,) = judge(ADD.replace("BLOCK=1024", "BLOCK=65536"), soc)
    best = found.best
    assert (best.verdict, best.buffer, best.there) == (Verdict.OVERFLOWS, "ub", there)
    assert best.needed > there


def test_the_largest_block_that_fits_does_and_twice_of_it_does_not(judge: Judge) -> None:
    fits, too_large = (judge(ADD.replace("BLOCK=1024", f"BLOCK={block}"))[0] for block in (16384, 32768))
    assert fits.best.verdict is Verdict.COMPILES
    assert too_large.best.verdict is Verdict.OVERFLOWS


def test_a_type_that_the_target_lacks_is_refused(judge: Judge) -> None:
    (found,) = judge(
        ADD.replace(
            "tl.load(x_ptr + offsets, mask=mask) +", "tl.load(x_ptr + offsets, mask=mask).to(tl.float8e4b15) +"
        )
    )
    assert found.best.verdict in (Verdict.REFUSED, Verdict.CRASHED)


@pytest.mark.parametrize(
    "made",
    [
        "tl.sqrt(tl.load(x_ptr + offsets, mask=mask).to(tl.float64)).to(tl.float32) +",
        "tl.load(x_ptr + offsets, mask=mask).to(tl.float8e5).to(tl.float32) +",
    ],
)
def test_a_type_that_the_kernel_itself_makes_is_not_put_down_to_a_guess(judge: Judge, made: str) -> None:
    (found,) = judge(ADD.replace("tl.load(x_ptr + offsets, mask=mask) +", made))
    assert (found.best.verdict, found.best.stage) == (Verdict.REFUSED, Stage.FRONT_END)
    assert found.best.line


def test_what_a_guessed_flag_left_none_is_no_verdict_on_a_kernel(judge: Judge) -> None:
    source = ADD.replace("BLOCK: tl.constexpr", "BLOCK: tl.constexpr, HAS_X: tl.constexpr").replace(
        "    mask = offsets < n\n",
        "    mask = offsets < n\n    x = None\n    if HAS_X:\n        x = tl.load(x_ptr + offsets, mask=mask)\n",
    )
    (found,) = judge(source.replace("tl.load(x_ptr + offsets, mask=mask) +", "x +"))
    assert found.best.verdict is Verdict.COMPILES


STRIDED = """
import triton
import triton.language as tl
from parts import put


@triton.heuristics({"BLOCK": lambda given: triton.next_power_of_2(given["columns"])})
@triton.jit
def strided(x_ptr, out_ptr, columns, stride_xr: tl.constexpr, stride_xc: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    put(out_ptr + at, tl.load(x_ptr + tl.program_id(0) * stride_xr + at * stride_xc, mask=at < columns))
"""
PARTS = """
import triton
import triton.language as tl


@triton.jit
def put(to, value):
    tl.store(to, value)
"""


def test_what_kernels_of_other_files_call_is_a_part_of_them_and_their_guess_has_contiguous_tensors(
    compiler: Toolchain, tmp_path: Path
) -> None:
    (tmp_path / "strided.py").write_text(STRIDED)
    (tmp_path / "parts.py").write_text(PARTS)
    asked = judging.Request(toolchain=compiler, soc=Soc.A2, unconfined=bool(os.environ.get("CI")))
    (found,) = judging.read(targets.find(str(tmp_path), tmp_path), asked).kernels
    (case,) = found.cases
    assert found.name == "strided"
    assert case.constants == {"stride_xr": 128, "stride_xc": 1, "BLOCK": 128}


def test_a_module_that_this_triton_does_not_have_is_named(judge: Judge) -> None:
    source = "import triton.language.extra.nowhere as al\n" + ADD.replace("offsets < n", "al.less(offsets, n)")
    (found,) = judge(source)
    assert found.best.verdict is Verdict.NOT_JUDGED
    assert "it needs triton.language.extra.nowhere as al" in found.best.why


SIGNALS = "tl.sync_block_set('cube', 'vector', 3)"
WAITS = "tl.sync_block_wait('cube', 'vector', 3)"


@pytest.mark.parametrize(
    ("lines", "verdict"),
    [
        ((SIGNALS, WAITS), Verdict.COMPILES),
        ((WAITS,), Verdict.HANGS),
        ((SIGNALS, WAITS, WAITS), Verdict.HANGS),
        (("tl.debug_barrier()", "tl.debug_barrier()"), Verdict.COMPILES),
    ],
    ids=["as many waits as signals", "a wait too many", "a second wait", "barriers of one core, which end"],
)
def test_a_wait_too_many_is_found(judge: Judge, lines: tuple[str, ...], verdict: Verdict) -> None:
    added = "".join(f"    {line}\n" for line in lines)
    (found,) = judge(ADD.replace("    mask = offsets < n\n", f"    mask = offsets < n\n{added}"))
    assert found.best.verdict is verdict


def test_a_function_that_this_triton_does_not_have_is_refused_with_its_line(judge: Judge) -> None:
    source = ADD.replace("    mask = offsets < n\n", "    mask = offsets < n\n    tl.no_such_thing(mask)\n")
    (found,) = judge(source)
    assert (found.best.verdict, found.best.stage) == (Verdict.REFUSED, Stage.FRONT_END)
    assert found.best.text == "tl.no_such_thing(mask)"
    assert found.best.line == source.splitlines().index("    tl.no_such_thing(mask)") + 1


def test_of_several_configurations_the_first_that_compiles_counts(judge: Judge) -> None:
    (found,) = judge(TUNED)
    assert [outcome.verdict for _, outcome in found.tried] == [
        Verdict.OVERFLOWS,
        Verdict.OVERFLOWS,
        Verdict.COMPILES,
    ]
    assert found.best.verdict is Verdict.COMPILES
    assert found.arguments is not None
    assert found.arguments.label == "BLOCK=4096"


def test_a_kernel_that_needs_a_package_that_is_not_here_is_not_judged(judge: Judge) -> None:
    source = "from elsewhere import LIMIT\n" + ADD.replace("offsets < n", "offsets < LIMIT")
    (found,) = judge(source)
    assert found.best.verdict is Verdict.NOT_JUDGED
    assert "elsewhere.LIMIT" in found.best.why


def test_a_compiler_that_takes_too_long_is_no_verdict(judge: Judge) -> None:
    (found,) = judge(ADD, seconds=0.01)
    assert found.best.verdict is Verdict.NOT_JUDGED
    assert "still running" in found.best.why


def test_a_verdict_is_kept_until_the_source_changes(judge: Judge) -> None:
    judge(ADD)
    (again,) = judge(ADD)
    (changed,) = judge(ADD.replace("offsets < n", "offsets <= n"))
    assert again.best.cached
    assert again.best.verdict is Verdict.COMPILES
    assert not changed.best.cached


@pytest.mark.parametrize("share", [0, 2])
def test_a_kept_verdict_that_was_cut_short_is_made_anew(judge: Judge, tmp_path: Path, share: int) -> None:
    judge(ADD)
    (kept,) = (tmp_path / "verdicts").rglob("*.json")
    os.truncate(kept, kept.stat().st_size // share if share else 0)
    (again,) = judge(ADD)
    assert (again.best.cached, again.best.verdict) == (False, Verdict.COMPILES)


def test_what_a_file_prints_or_exits_with_is_nobody_s_answer(judge: Judge) -> None:
    (found,) = judge("print('{}')\nimport sys\nif sys.argv: noise = print('[]')\n" + ADD)
    assert found.best.verdict is Verdict.COMPILES

"""An answer made by weights that should have been replaced is found in the first batch that contains it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from verl_npu.errors import TransferError
from verl_npu.features.weight_sync.patches.answers import name_answers_by_old_weights, old_answers


def tag(step: int, version: int | None, **more: object) -> dict[str, object]:
    """Return the tag of an answer to a prompt of a step; the weights of `version` made its first token."""
    return {"global_steps": step, "min_global_steps": version, "max_global_steps": step, **more}


@pytest.mark.parametrize(
    "tags",
    [
        # Handed out while the weights of the step before were the newest, and cut and resumed since.
        [tag(1, 0), tag(5, 4), tag(5, 5), tag(5, 7)],
        # Upstream's own padding, and a tag without any version.
        [tag(5, 0, is_padding=True), {"status": "success"}],
    ],
)
def test_answers_by_weights_that_were_newest_are_in_order(tags: list[dict[str, object]]) -> None:
    assert list(old_answers(tags)) == []


def test_answers_of_a_server_that_missed_a_sync_are_named_with_their_weights() -> None:
    (error,) = old_answers([tag(6, 5), tag(6, 3), tag(5, 3)])
    assert str(error).startswith(
        "2 of 3 answers (the first of them is for a prompt of step 5): expected answers generated with the weights of "
        "step 4 or newer; found answers with the weights of step 3"
    )


def test_answers_of_a_server_that_never_got_weights_are_named() -> None:
    (error,) = old_answers([tag(1, None)])
    assert "weights of an unknown step" in str(error)


@pytest.mark.parametrize("wanted", ["warn", "error"])
def test_a_job_goes_on_or_ends_as_the_user_chose(
    wanted: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("VERL_NPU_OLD_ANSWERS", wanted)
    batch = SimpleNamespace(tags=[tag(9, 2)])
    if wanted == "error":
        with pytest.raises(TransferError, match="with the weights of step 8"):
            name_answers_by_old_weights(lambda buffer: batch, object())
    else:
        assert name_answers_by_old_weights(lambda buffer: batch, object()) is batch
        assert "with the weights of step 8" in capsys.readouterr().err

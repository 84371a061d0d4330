"""The picture of each prompt: who takes one, and whether there is room."""

from __future__ import annotations

import dataclasses

import pytest

from verl_npu.errors import PlanError
from verl_npu.plan.job import Picture
from verl_npu.plan.pictures import check_text_only, picture_of
from verl_npu.plan.share import share_of

from .conftest import MODEL

SEEING = dataclasses.replace(MODEL, picture=Picture(token=9, width=6, patches=4, positions=4))


def test_each_prompt_has_the_picture_that_was_asked_for(settings) -> None:
    assert picture_of(SEEING, 100, share_of(settings(), None)) == (dataclasses.replace(SEEING.picture, tokens=100), [])


def test_prompts_without_pictures_are_said(settings) -> None:
    picture, notes = picture_of(SEEING, 0, share_of(settings(), None))
    assert picture == SEEING.picture
    assert "--picture-tokens" in notes[0]


def test_a_model_of_text_has_none_and_nothing_is_said(settings) -> None:
    assert picture_of(MODEL, 0, share_of(settings(), None)) == (None, [])


def test_a_picture_for_a_model_of_text_is_one_line(settings) -> None:
    with pytest.raises(PlanError, match="--picture-tokens: expected an image-text model"):
        picture_of(MODEL, 100, share_of(settings(), None))


def test_a_picture_that_is_larger_than_a_prompt_is_one_line(settings) -> None:
    with pytest.raises(PlanError, match="expected less than the 1024 tokens of a prompt, found 1024"):
        picture_of(SEEING, 1024, share_of(settings(), None))


def test_fine_tuning_with_pictures_is_one_line() -> None:
    check_text_only(MODEL, 0)
    with pytest.raises(PlanError, match="--picture-tokens: expected text alone"):
        check_text_only(MODEL, 5)
    with pytest.raises(PlanError, match=r"the model a test: expected text alone: .* found an image-text model"):
        check_text_only(SEEING, 0)

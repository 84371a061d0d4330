"""What of the changed settings is written into the trainer's command."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from verl_npu.tools.rehearse.rehearsal import _follows
from verl_npu.tools.rehearse.rules import Change

INTERPOLATIONS = {
    "ref.megatron.override": "${oc.select:actor.megatron.override,{}}",
    "rollout.length": "${data.length}",
}
ACTORS = Change("actor.megatron.override.stages", 8, None, "pipeline stages")
DATAS = Change("data.length", 2048, 16, "lengths")


@pytest.mark.parametrize(
    ("key", "after", "follows"),
    [
        ("rollout.length", 16, True),
        ("rollout.length", 32, False),
        ("ref.megatron.override.stages", None, True),
        ("ref.megatron.override.stages", 2, False),
        ("ref.megatron.override.other", None, False),
        ("critic.megatron.override.stages", None, False),
    ],
)
def test_what_follows_a_changed_key_by_interpolation_is_not_written(key: str, after: object, follows: bool) -> None:
    change = Change(key, 1, after, "a rule")
    assert _follows(change, [ACTORS, DATAS, change], SimpleNamespace(interpolations=INTERPOLATIONS)) is follows  # type: ignore[arg-type]


def test_a_change_is_its_keys_override() -> None:
    assert Change("a.b", 1, "x y", "rule").override() == "++a.b='x y'"

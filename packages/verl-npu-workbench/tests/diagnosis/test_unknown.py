from __future__ import annotations

from verl_npu_workbench.diagnosis.event import Event
from verl_npu_workbench.diagnosis.judgement import judge
from verl_npu_workbench.diagnosis.owner import Owner, frames
from verl_npu_workbench.diagnosis.unknown import features, nearest, states, text_to_search, where_to_look

TRACEBACK = """Traceback (most recent call last):
  File "/home/me/work/verl/verl/trainer/main_ppo.py", line 300, in run
    trainer.fit()
  File "/home/me/work/verl/verl/workers/fsdp_workers.py", line 600, in update_actor
    self.step()
  File "/opt/vllm-ascend/vllm_ascend/worker/worker_v1.py", line 12, in sleep
    self.give()
  File "/usr/lib/python3.11/site-packages/torch/nn/module.py", line 12, in call
    self.give()
  File "/home/me/reward.py", line 3, in compute_score
    raise
RuntimeError: the buffer 0x7f3a at /home/me/x.bin of 4711 bytes is not what was promised"""


def event(text: str = TRACEBACK) -> Event:
    root = judge(text.splitlines()).root
    assert root is not None
    return root.event


def test_frames_are_told_by_whose_they_are() -> None:
    assert [(frame.owner, frame.module) for frame in frames(event())] == [
        (Owner.VERL, "verl.workers.fsdp_workers"),
        (Owner.ENGINE, "vllm_ascend.worker.worker_v1"),
        (Owner.LIBRARY, ""),
        (Owner.YOURS, ""),
    ]


def test_a_feature_that_patches_a_module_of_a_frame_is_named() -> None:
    text = (
        'Traceback (most recent call last):\n  File "/opt/verl/verl/trainer/main_ppo.py", line 3, in run_ppo\n'
        "ValueError: odd"
    )
    assert "device" in features(event(text))
    assert features(event("ValueError: odd")) == []


def test_states_are_those_that_the_log_said_last() -> None:
    first = "verl-npu: 0.1.0: verl v0.6.1, transformers 4.57.6; device pending, attention pending"
    then = "verl-npu: 0.1.0: verl v0.6.1; device applied, attention native, rollout off"
    assert states([first, then, "verl-npu: 4 processes agree on what is patched"]) == {
        "device": "applied",
        "attention": "native",
        "rollout": "off",
    }


def test_the_nearest_rules_are_those_that_share_the_words_that_tell() -> None:
    near = nearest(event("RuntimeError: Operator npu.npu_other does not have any sharding strategy registered yet"))
    assert near[0].rule.code == "operator-not-sharded"
    assert 0.5 < near[0].nearness < 1
    assert nearest(event("RuntimeError: zyx wvu")) == []


def test_what_changes_each_time_is_not_searched_for() -> None:
    searched = text_to_search(event())
    assert searched == "bytes is not what was promised"


def test_it_is_looked_for_where_the_last_frame_is_from() -> None:
    engine = TRACEBACK.replace("/home/me/reward.py", "/opt/vllm/vllm/engine.py")
    assert where_to_look(event(engine))[0] == "vllm-project/vllm-ascend"
    assert len(where_to_look(event("ValueError: odd"))) == 3

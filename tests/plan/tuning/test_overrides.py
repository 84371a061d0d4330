"""What one rank is told besides the script's own settings."""

from __future__ import annotations

from pathlib import Path

from verl_npu.plan.tuning.names import names_of
from verl_npu.plan.tuning.overrides import tuning_overrides
from verl_npu.plan.tuning.share import tuning_share
from verl_npu.rehearse.trainer import Trainer


def test_two_steps_of_two_micro_batches_read_nothing(tuning_settings, torchrun: Trainer) -> None:
    chosen = tuning_settings(True, model__tokenizer_path="mine", model__use_shm=True)
    names = names_of(torchrun, chosen)
    assert names is not None
    share = tuning_share(names, torchrun, chosen, None, None, ())
    found = dict(each.lstrip("+").split("=", 1) for each in tuning_overrides(names, chosen, share, Path("made")))
    assert found["data.train_batch_size"] == str(8 * share.sequences)
    assert found["trainer.total_training_steps"] == "2"
    assert (found["model.path"], found["model.tokenizer_path"]) == ("'made'", "'made'")
    assert found["model.use_shm"] == "False"
    assert found["checkpoint.save_contents"] == "['model','optimizer','extra']"


def test_a_budget_that_many_sequences_overdraw_is_raised(tuning_settings, torchrun: Trainer) -> None:
    chosen = tuning_settings(True, data__max_token_len_per_gpu=4096)
    names = names_of(torchrun, chosen)
    assert names is not None
    share = tuning_share(names, torchrun, chosen, None, None, ())
    assert "++data.max_token_len_per_gpu=7680" in tuning_overrides(names, chosen, share, Path("made"))
    assert ["7680 tokens in place of 4096" in note for note in share.notes] == [False, True]

"""Finds the first layer and operator at which a trainer and a rollout engine compute different values.

`recording` records what the parts of a model compute. `reference` computes the same parts on the host, from each
side's own inputs. `judging` compares the two, and `causes` looks for the reason of a difference.

For a script, `running` starts the engine in `vllm` and the trainer in `computing`, which starts verl's own FSDP or
Megatron engine in `training`; `megatron` records the latter. Within a job, `contribution` has the patch, and `job`
compares. `report` shows the result.
"""

from verl_npu.language import gettext as _

EXCHANGED = CHUNKS, PREFIX, GRAPHS = _("chunked prefill"), _("prefix cache"), _("graphs")
"""The settings of an engine that are exchanged. The answers of the engine without one of them are in a folder that has
the setting's number."""
ASK, ANSWERS, RESULT = "ask.json", "answers.json", "comparison.pickle"
"""The files that the programs of a comparison use to pass on their results, in one folder. The last one has texts for
the user, which lose their translations in JSON."""

"""Faults that users reported of vllm-ascend, seeded into the model of a worker of the real release.

Each makes the engine compute what the report says, and not the way to it: sleep, a second load, or a captured graph.
"""

from __future__ import annotations

from typing import Any

import torch
from verl_npu_workbench.layers.vllm import LayerRecorder


class Copies(LayerRecorder):
    """vllm-ascend#7473: MLA multiplies with copies of kv_b_proj from before the last weights."""

    def start_layers(self) -> None:
        for module in self.model_runner.model.modules():
            copy = getattr(getattr(module, "impl", None), "W_UK_T", None)
            if copy is not None:
                copy += 0.05 * torch.randn_like(copy)
        super().start_layers()


class Kept(LayerRecorder):
    """vllm-ascend#5747: the projection with all_reduce multiplies with the weight that it had before."""

    def start_layers(self) -> None:
        projection = self.model_runner.model.model.layers[1].self_attn.o_proj
        before = projection.weight + 0.05 * torch.randn_like(projection.weight)

        def apply(layer: object, given: torch.Tensor, bias: object = None) -> torch.Tensor:
            return given @ before.T

        projection.quant_method.apply = apply
        super().start_layers()


class SecondRow(LayerRecorder):
    """vllm-ascend#2877 and #10579: a row of an expert of another rank counts as row 1, times zero; row 1 is NaN."""

    def start_layers(self) -> None:
        from vllm_ascend.ops.fused_moe import token_dispatcher  # type: ignore[import-not-found]

        dispatcher = token_dispatcher.TokenDispatcherWithAllGather
        combine = dispatcher.token_combine

        def spoilt(self: object, hidden_states: torch.Tensor, *args: Any, **named: Any) -> Any:
            hidden_states[1] = torch.nan
            return combine(self, hidden_states, *args, **named)

        dispatcher.token_combine = spoilt
        super().start_layers()


class Experts(LayerRecorder):
    """verl#7086: the tokens of a rank go to other ones of its experts, because it lost their ids."""

    def start_layers(self) -> None:
        for name, parameter in self.model_runner.model.named_parameters():
            if name.endswith(("layers.0.mlp.experts.w13_weight", "layers.0.mlp.experts.w2_weight")):
                parameter.data.copy_(parameter.data.flip(0).clone())
        super().start_layers()


class Halves(LayerRecorder):
    """vime#274: an export to the engine's names puts the parts of a fused weight in another order."""

    def start_layers(self) -> None:
        weight = self.model_runner.model.model.layers[0].mlp.gate_up_proj.weight
        weight.data.copy_(weight.data.roll(len(weight) // 2, 0).clone())
        super().start_layers()


class _Batches(LayerRecorder):
    """The attention of the first layer is wrong in some batches."""

    def start_layers(self) -> None:
        runner, wrong = self.model_runner, [False]
        run, attention = runner.execute_model, runner.model.model.layers[0].self_attn.attn
        attend = attention.forward

        def execute(scheduled: Any, *args: Any, **named: Any) -> Any:
            wrong[:] = [self.is_wrong(scheduled)]
            return run(scheduled, *args, **named)

        runner.execute_model = execute
        attention.forward = lambda *args, **named: attend(*args, **named) * (1.1 if wrong[0] else 1.0)
        super().start_layers()

    def is_wrong(self, scheduled: Any) -> bool:
        raise NotImplementedError


class Chunks(_Batches):
    """Wrong in a batch that has a later chunk of a prompt."""

    def is_wrong(self, scheduled: Any) -> bool:
        return any(scheduled.num_scheduled_tokens[each] > 1 for each in scheduled.scheduled_cached_reqs.req_ids)


class Prefix(_Batches):
    """Wrong in a batch that has a prompt whose first tokens are in the prefix cache."""

    def is_wrong(self, scheduled: Any) -> bool:
        return any(each.num_computed_tokens for each in scheduled.scheduled_new_reqs)


class Moved(LayerRecorder):
    """Captured graphs compute with the memory in which a weight was before."""

    def start_layers(self) -> None:
        weight = self.model_runner.get_model().model.layers[1].mlp.down_proj.weight
        self.before = weight.data
        weight.data = self.before.clone()
        self.before += 0.05 * torch.randn_like(self.before)
        super().start_layers()

"""An agent loop of two turns for a small model that cannot call a tool: the loop calls the tool after the first turn.

    PYTHONPATH=scripts ./scripts/smoke.sh --pin v0.9.1 --job separate_async -- \
        actor_rollout_ref.rollout.agent.agent_loop_config_path=$PWD/scripts/harness/scripted_tool.yaml \
        actor_rollout_ref.rollout.agent.default_agent_loop=scripted_tool

Both turns consist of the model's own tokens, which are trained on. The tool's answer between them is masked out.
"""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopOutput


class ScriptedTool(AgentLoopBase):
    """Generates a turn, appends the answer of a tool, and generates another turn."""

    async def run(self, sampling_params: dict[str, Any], priority: int = 0, **kwargs: Any) -> AgentLoopOutput:
        """Return the two turns of one answer, with the tool's tokens masked out."""
        prompt = await self.ct_build_initial_tokens(list(kwargs["raw_prompt"]))
        told = self.tokenizer.encode("tool", add_special_tokens=False)[:2]
        half = (self.rollout_config.response_length - len(told)) // 2
        answer: list[int] = []
        mask: list[int] = []
        probabilities: list[float] = []
        begun: dict[str, Any] = {}
        # Both turns have the same id, so that the load balancer sends both to the same server.
        request = uuid4().hex
        for turn in range(2):
            if turn:
                answer, mask, probabilities = answer + told, mask + [0] * len(told), probabilities + [0.0] * len(told)
            output = await self.server_manager.generate(
                request_id=request,
                prompt_ids=[*prompt, *answer],
                sampling_params={**sampling_params, "max_tokens": half},
                priority=int(priority),
            )
            begun = output.extra_fields if turn == 0 else begun
            tokens = output.token_ids[:half]
            answer, mask = [*answer, *tokens], mask + [1] * len(tokens)
            probabilities += (output.log_probs or [])[:half]
        return AgentLoopOutput(
            prompt_ids=prompt,
            response_ids=answer,
            response_mask=mask,
            response_logprobs=probabilities if len(probabilities) == len(answer) else None,
            num_turns=4,
            metrics={},
            extra_fields={
                **output.extra_fields,
                "min_global_steps": begun.get("min_global_steps"),
                "turn_scores": [],
                "tool_rewards": [],
            },
        )

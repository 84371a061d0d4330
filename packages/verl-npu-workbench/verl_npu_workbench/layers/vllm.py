"""Records the parts of a model in vLLM: FOLDER, with the file `ask.json`.

The recording is written into FOLDER, one file for each rank, and one with the answers. With captured graphs, it has
only the outputs.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from verl_npu.features.weight_sync.engines.layout import Layout, layouts_of
from verl_npu.features.weight_sync.engines.replayed import Substitute, in_place_of
from verl_npu.features.weight_sync.transport.tensors import digest_of

from . import ANSWERS, ASK
from .recording import LOGPROBS, OF_KEYS, SHARDED, Batch, Place, Recorder, Recording, recorded, weights_of

_RUN = "execute_model"


class LayerRecorder:
    """Methods that vLLM adds to its workers through its setting `worker_extension_cls`."""

    model_runner: Any
    rank: int

    def start_layers(self) -> None:
        """Start to record the values of all layers."""
        runner, recorder = self.model_runner, Recorder()
        run = getattr(runner, _RUN)
        stack = ExitStack()
        stack.enter_context(recorded(_model(runner), recorder))

        def execute(batch: Any, *args: Any, **named: Any) -> Any:
            watched = _Watched(runner, recorder, batch.num_scheduled_tokens)
            with in_place_of(runner, watched):
                done = run(batch, *args, **named)
            # While a graph is replayed, a copy to the host would wait forever.
            recorder.add("norm:out", watched.made)
            recorder.begin(())
            return done

        runner.__dict__[_RUN] = execute
        # Hooks end with the context.
        self._layers, self._hooks = recorder, stack

    def save_layers(self, folder: str, tokens: list[list[int]], prompts: list[int]) -> None:
        """Write the recorded values, and the engine's weights whose values differ from the trainer's weights."""
        batch = Batch(tuple(map(tuple, tokens)), tuple(prompts))
        model = _model(self.model_runner)
        made = self._layers.recording(batch, self.model_runner.model_config.dtype)
        asked = json.loads(Path(folder, ASK).read_text())
        whole = asked["engine"]["tensor_parallel_size"] == 1
        weights = dict(_differing(layouts_of(model), asked["weights"])) if whole else {}
        torch.save({"values": dict(made.values), "weights": weights}, Path(folder, f"rank-{self.rank}.pt"))


def _model(runner: Any) -> Any:
    """Return a runner's model without the wrapper that replays graphs."""
    return runner.get_model() if hasattr(runner, "get_model") else runner.model


class _Watched(Substitute):
    """A model that tells a recorder its rows, and keeps its output: in graphs, modules call no hooks."""

    def __init__(self, runner: Any, recorder: Recorder, counts: Mapping[str, int]) -> None:
        super().__init__(runner.model)
        self._runner, self._recorder, self._counts = runner, recorder, counts
        self.made: object = None

    def __getattr__(self, name: str) -> Any:
        if name in ("get_input_embeddings", "embed_input_ids"):
            # The tokens of a model with pictures are embedded before the model is called.
            self._begin()
        return super().__getattr__(name)

    def __call__(self, *args: Any, **named: Any) -> Any:
        self._begin()
        self.made = self._model(*args, **named)
        return self.made

    def _begin(self) -> None:
        batch, places, heads = self._runner.input_batch, list[Place | None](), list[Place | None]()
        for row, request in enumerate(batch.req_ids):
            # vLLM counts requests, and may add to the number. The order in a batch is another one.
            number, begin = int(request.partition("-")[0]), int(batch.num_computed_tokens_cpu[row])
            places += [(number, begin + each) for each in range(self._counts[request])]
            # The last row of each request reaches the head.
            heads.append(places[-1])
        self._recorder.begin(places, heads)


def _differing(
    layouts: Sequence[Layout], sent: Mapping[str, tuple[int, list[int]]]
) -> Iterator[tuple[str, torch.Tensor]]:
    """Return the engine's weights whose digests are not those of the trainer's, under the trainer's names."""
    for layout in layouts:
        names = next((each for each in layout.sources if all(name in sent for name in each)), None)
        if names is None or layout.opaque or layout.chosen is not None:
            continue
        held, begin = layout.held(), 0
        for name in names:
            digest, shape = sent[name]
            size = torch.Size(shape)
            # Experts are stacked along the rows.
            rows = size.numel() // held.shape[-1] if held.dim() > 1 else size.numel()
            part = held[begin : begin + rows]
            begin += rows
            if part.numel() == size.numel() and digest_of(part.reshape(size)) != digest:
                yield name, part.reshape(size).clone()


def main(folder: Path) -> None:
    """Answer the prompts and write the recording."""
    from vllm import LLM, SamplingParams  # type: ignore[import-not-found]

    asked = json.loads((folder / ASK).read_text())
    extension = f"{__spec__.name}.{LayerRecorder.__name__}"
    engine = LLM(**{"worker_extension_cls": extension, **asked["engine"]})
    engine.collective_rpc("start_layers")
    settings = SamplingParams(logprobs=0, ignore_eos=True, **asked["sampling"])
    prompts = [{"prompt_token_ids": prompt} for prompt in asked["prompts"]]
    answers = engine.generate(prompts, settings, use_tqdm=False)
    tokens = [[*asked["prompts"][row], *answer.outputs[0].token_ids] for row, answer in enumerate(answers)]
    lengths = [len(prompt) for prompt in asked["prompts"]]
    chosen = [
        each[token].logprob
        for answer in answers
        for token, each in zip(answer.outputs[0].token_ids, answer.outputs[0].logprobs, strict=True)
    ]
    engine.collective_rpc("save_layers", args=(str(folder), tokens, lengths))
    # Whoever finds the answers also finds the ranks' recordings.
    (folder / ANSWERS).write_text(json.dumps({"tokens": tokens, "prompts": lengths, "logprobs": chosen}))


def read(folder: Path, dtype: torch.dtype, model: Any) -> Recording:
    """Combine the recordings of all ranks. The weights have the names that transformers uses for this model."""
    answered, kv_heads = json.loads((folder / ANSWERS).read_text()), model.config.get_text_config().num_key_value_heads
    ranks = [torch.load(folder / f"rank-{rank}.pt") for rank in range(len([*folder.glob("rank-*.pt")]))]
    values = {name: _merged([each["values"][name] for each in ranks], name, kv_heads) for name in ranks[0]["values"]}
    values[LOGPROBS] = torch.tensor(answered["logprobs"], dtype=torch.float32)[:, None]
    batch = Batch(tuple(map(tuple, answered["tokens"])), tuple(answered["prompts"]))
    return Recording(batch, dtype, values, weights_of(model, ranks[0]["weights"]))


def _merged(parts: Sequence[torch.Tensor], name: str, kv_heads: int) -> torch.Tensor:
    if not SHARDED.fullmatch(name):
        return parts[0]
    # Several ranks hold the same key head if there are fewer heads than ranks.
    step = max(1, len(parts) // kv_heads) if OF_KEYS.fullmatch(name) else 1
    return torch.cat(list(parts[::step]), dim=-1)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

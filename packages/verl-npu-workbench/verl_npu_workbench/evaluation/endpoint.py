"""An OpenAI-style endpoint, asked through the package openai, which repeats what failed in passing."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

from verl_npu.errors import EvaluationError
from verl_npu.language import gettext as _

from ..extras import need
from .dataset import Prompt

_HERE = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class Sampling:
    """How answers are drawn. What is None is left to the server."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int | None = None
    max_tokens: int | None = None
    seed: int | None = None
    """The answer of round r to row i is drawn with seed + r * 1000003 + i."""
    template: Mapping[str, object] = field(default_factory=dict)
    """data.apply_chat_template_kwargs of the training."""

    def request(self, row: int, number: int, model: Model) -> dict[str, object]:
        """Return what goes into the request of a round."""
        # What is not given vLLM takes from the model's generation_config.json, and verl's rollouts do not.
        body: dict[str, object] = {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0} if model.of_vllm else {}
        if self.top_k is not None:
            body["top_k"] = self.top_k
        if self.template:
            body["chat_template_kwargs"] = dict(self.template)
        given: dict[str, object] = {"temperature": self.temperature, "top_p": self.top_p}
        if self.max_tokens is not None:
            given["max_tokens"] = self.max_tokens
        if self.seed is not None:
            given["seed"] = self.seed + number * 1_000_003 + row
        return {**given, "extra_body": body} if body else given

    def as_json(self) -> dict[str, object]:
        """Return it as plain values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Model:
    """A model that an endpoint serves."""

    name: str
    root: str
    """Where the server has it from, if it says so: vLLM gives the folder."""
    of_vllm: bool = False
    """Whether the server is vLLM, which knows more settings than OpenAI's interface has."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the endpoint answered."""

    text: str
    finish_reason: str
    tokens: int | None


class Endpoint:
    """A connection, closed at the end of its `async with`."""

    def __init__(self, url: str, retries: int, timeout: float) -> None:
        need("openai", _("asking an endpoint"), "evaluate", EvaluationError)
        import openai

        self.url = url
        # A proxy that is set for the world outside does not lead to this machine.
        client = openai.DefaultAsyncHttpxClient(trust_env=False) if urlsplit(url).hostname in _HERE else None
        key = os.environ.get("OPENAI_API_KEY") or "none"
        self._client = openai.AsyncOpenAI(
            base_url=url, api_key=key, max_retries=retries, timeout=timeout, http_client=client
        )

    async def __aenter__(self) -> Endpoint:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.close()

    async def model(self, name: str | None) -> Model:
        """Return the model `name`, or the only one that there is.

        Raises:
            EvaluationError: the endpoint does not answer, or has another one.
        """
        import openai

        try:
            listed = (await self._client.models.list()).data
        except openai.OpenAIError as error:
            raise self._refusal(_("an OpenAI-style endpoint"), error) from error
        models = {each.id: Model(each.id, str(_extra(each, "root")), each.owned_by == "vllm") for each in listed}
        if name is None and len(models) == 1:
            return next(iter(models.values()))
        if name not in models:
            raise EvaluationError(
                subject=self.url,
                expected=_("the model {name}").format(name=name) if name else _("one model"),
                found=_(", ").join(models) or _("none"),
                fix=_("name one with --model"),
            )
        return models[name]

    async def ask(self, model: str, prompt: Prompt, sampling: Mapping[str, Any]) -> Answer:
        """Return the answer to one prompt.

        Raises:
            EvaluationError: there is none after all retries.
        """
        import openai

        try:
            said = await self._client.chat.completions.create(
                model=model, messages=list(prompt.messages), stream=False, **sampling
            )
        except openai.OpenAIError as error:
            raise self._refusal(_("an answer to row {row}").format(row=prompt.row), error) from error
        choice = said.choices[0]
        tokens = said.usage.completion_tokens if said.usage else None
        return Answer(choice.message.content or "", str(choice.finish_reason), tokens)

    def _refusal(self, expected: str, error: Exception) -> EvaluationError:
        # What a connection failed of is in the cause alone.
        why = f"{error} ({error.__cause__})" if error.__cause__ else str(error)
        return EvaluationError(
            subject=self.url,
            expected=expected,
            found=f"{type(error).__name__}: {why}",
            fix=_("look at the server's log; the same command goes on where this one ended"),
        )


def _extra(model: object, name: str) -> object:
    """Return a field that OpenAI's own interface does not have; empty where the server leaves it out."""
    return getattr(model, name, None) or ""

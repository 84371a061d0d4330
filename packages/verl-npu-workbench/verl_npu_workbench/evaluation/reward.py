"""The training's reward function, called as verl's NaiveRewardManager calls it.

verl/workers/reward_manager/naive.py and get_custom_reward_fn of verl/trainer/ppo/reward.py at v0.6.1.
"""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from verl_npu.errors import EvaluationError
from verl_npu.language import gettext as _

from .dataset import Prompt

# What verl calls it; a function may look itself up there.
_MODULE = "custom_module"


@dataclass(frozen=True, slots=True)
class Grade:
    """What one answer got."""

    score: float
    more: Mapping[str, object] = field(default_factory=dict)
    """What else the function returned, such as `acc`."""


@dataclass(frozen=True, slots=True)
class Reward:
    """A reward function, and what tells it from another one."""

    identity: Mapping[str, object]
    function: Callable[..., Any]
    arguments: Mapping[str, object]

    async def grade(self, prompt: Prompt, answer: str) -> Grade:
        """Grade an answer.

        Raises:
            EvaluationError: the function raised an error, or returned no score.
        """
        # verl gives it these two as well.
        extra = {"num_turns": None, "rollout_reward_scores": {}, **prompt.extra_info}
        try:
            found = self.function(
                data_source=prompt.data_source,
                solution_str=answer,
                ground_truth=prompt.ground_truth,
                extra_info=extra,
                **self.arguments,
            )
            if inspect.isawaitable(found):
                found = await found
        except Exception as error:
            # The user's code may raise anything.
            raise _refusal(self.identity, prompt, f"{type(error).__name__}: {error}") from error
        more = dict(found) if isinstance(found, Mapping) else {}
        score = more.pop("score", None) if isinstance(found, Mapping) else found
        # numpy's numbers and truth values among them.
        try:
            return Grade(float(score), {key: _plain(value) for key, value in more.items()})
        except (TypeError, ValueError) as error:
            raise _refusal(self.identity, prompt, repr(found)) from error


def load(path: Path | None, name: str, arguments: Mapping[str, object]) -> Reward:
    """Return verl's own reward function, or the one `name` of the file `path`, as custom_reward_function has it.

    Raises:
        EvaluationError: there is none.
    """
    if path is None:
        return Reward({"verl": _verl(), "arguments": dict(arguments)}, _default(), arguments)
    try:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise EvaluationError(
            subject=f"--reward {path}", expected=_("a Python file"), found=str(error), fix=_("give another one")
        ) from error
    identity = {"name": name, "sha256": digest, "arguments": dict(arguments)}
    function = getattr(_imported(path), name, None)
    if not callable(function):
        raise EvaluationError(
            subject=f"--reward {path}",
            expected=_("a function {name} in it").format(name=name),
            found=_("none"),
            fix=_("give the job's custom_reward_function.name as --reward-name"),
        )
    return Reward(identity, function, arguments)


def _imported(path: Path) -> object:
    spec = importlib.util.spec_from_file_location(_MODULE, path)
    if spec is None or spec.loader is None:
        raise EvaluationError(
            subject=f"--reward {path}",
            expected=_("a Python file"),
            found=_("another one"),
            fix=_("give one that ends with .py"),
        )
    module = importlib.util.module_from_spec(spec)
    sys.modules[_MODULE] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise EvaluationError(
            subject=f"--reward {path}",
            expected=_("a file that can be imported"),
            found=f"{type(error).__name__}: {error}",
            fix=_("mend it, or run this in the environment that trained"),
        ) from error
    return module


def _default() -> Callable[..., Any]:
    try:
        from verl.utils.reward_score import default_compute_score
    except ImportError as error:
        raise EvaluationError(
            subject=_("verl's own reward function"),
            expected=_("verl in this environment"),
            found=str(error),
            fix=_("run this in the environment that trained, or give --reward FILE"),
        ) from error
    return default_compute_score  # type: ignore[no-any-return]


def _verl() -> str:
    try:
        return metadata.version("verl")
    except metadata.PackageNotFoundError:
        return "unknown"


def _plain(value: object) -> object:
    """Return a value as JSON keeps it: numpy's numbers are the usual ones, and what is no JSON is its text."""
    item = getattr(value, "item", None)
    plain = item() if callable(item) and getattr(value, "ndim", 1) == 0 else value
    try:
        json.dumps(plain)
    except (TypeError, ValueError):
        return repr(plain)
    return plain


def _refusal(identity: Mapping[str, object], prompt: Prompt, found: str) -> EvaluationError:
    return EvaluationError(
        subject=_("the reward function {name} at row {row} ({data_source})").format(
            name=identity.get("name") or _("of verl"), row=prompt.row, data_source=prompt.data_source
        ),
        expected=_("a number, or a dict with a number as score"),
        found=found,
        fix=_("give the job's own function: --reward FILE --reward-name NAME"),
    )

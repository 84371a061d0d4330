"""Evaluation programs of others, run on the same endpoint."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from ..errors import EvaluationError

__all__ = ["NAMES", "lm_eval", "run"]

_PROGRAMS = {
    "lm-eval": ("lm_eval", "pip install 'lm-eval[api]'"),
    "aisbench": ("ais_bench", "install AISBench/benchmark from its repository"),
}
NAMES = tuple(_PROGRAMS)


def run(name: str, url: str, model: str | None, output: Path, words: Sequence[str]) -> int:
    """Run a program to its end, with `words` after what tells it of the endpoint, and return its exit status.

    AISBench takes the endpoint from its model configuration alone, which `words` name with --models.

    Raises:
        EvaluationError: it is not installed, or lm-eval is given no model.
    """
    program, fix = _PROGRAMS[name]
    if shutil.which(program) is None:
        raise EvaluationError(subject=f"--with {name}", expected=f"the program {program}", found="none", fix=fix)
    if name == "aisbench":
        return subprocess.run([program, "--work-dir", str(output), *words], check=False).returncode
    if model is None:
        raise EvaluationError(
            subject=f"--with {name}", expected="--model NAME", found="none", fix="give the name that it is served by"
        )
    return subprocess.run(lm_eval(url, model, output, words), check=False).returncode


def lm_eval(url: str, model: str, output: Path, words: Sequence[str]) -> list[str]:
    """Return lm-eval's command line, of docs/interface.md of EleutherAI/lm-evaluation-harness."""
    given = f"model={model},base_url={url.rstrip('/')}/chat/completions,num_concurrent=16,tokenized_requests=False"
    options = ["--model", "local-chat-completions", "--model_args", given]
    return ["lm_eval", *options, "--apply_chat_template", "--output_path", str(output), *words]

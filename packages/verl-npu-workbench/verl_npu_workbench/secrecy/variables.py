"""Chooses, from the user's environment, the variables that a program in a sandbox gets, and replaces secrets in them.

Two groups of variables are allowed: those that a job's processes are known to read, and those that the script or a
file that it names mentions, because a script should see the values that it would really have. A secret is replaced by
a placeholder. A script that checks whether the secret is set then still gets the right answer, and the secret can be
put back later.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from .masking import is_secret

JOB_VARIABLES = re.compile(
    r"(?:VERL|ASCEND|HCCL|NPU|PYTORCH|TORCH|VLLM|SGLANG|RAY|GLOO|TP|OMP|TASK_QUEUE|CPU_AFFINITY|MULTI_STREAM"
    r"|COMBINED|ATB|HF|HYDRA|VIRTUAL|LD_PRELOAD|LD_LIBRARY_PATH|CUDA|NCCL|LCCL|MINDSPEED|MEGATRON|TRITON|TRANSFORMERS"
    r"|TOKENIZERS|MKL|KMP|SLURM|MASTER|RANK|WORLD_SIZE|LOCAL_RANK|NODE_RANK|NNODES|PET|WG)(?:_.*)?"
)
"""The variables that a job's processes read."""
_PROGRAM_VARIABLES = re.compile(r"PATH|USER|LOGNAME|LANG|LC_\w+|TZ|TERM|PYTHON\w*|CC|CXX|TMPDIR")
_WORD = re.compile(r"[A-Za-z_]\w*")
_FILE = re.compile(r"[\w.\-][\w./\-]*\.(?:sh|bash|env|py|ya?ml)\b")
_MOST_FILES, _LARGEST_FILE = 200, 1 << 20
_PLACEHOLDER = "masked-"
_PLACEHOLDERS = re.compile(rf"{_PLACEHOLDER}([A-Za-z_]\w*)")


def allowed(environ: Mapping[str, str], named: Iterable[str] = ()) -> dict[str, str]:
    """Return the part of `environ` that a program in a sandbox gets. `named` are additional variables that the program
    uses."""
    names = set(named)
    return {
        name: f"{_PLACEHOLDER}{name}" if is_secret(name, value) else value
        for name, value in environ.items()
        if name in names or JOB_VARIABLES.fullmatch(name) or _PROGRAM_VARIABLES.fullmatch(name)
    }


def restored(text: str, environ: Mapping[str, str]) -> str:
    """Replace the placeholders that `allowed` inserted in a text with the original secrets. Pass the result only to
    programs outside the sandbox."""
    return _PLACEHOLDERS.sub(lambda found: environ.get(found[1], found[0]), text)


def words_of(texts: Iterable[str], *folders: Path) -> set[str]:
    """Return all words that may be variable names in the texts, and in the files under `folders` that the texts
    mention directly or through other files."""
    words: set[str] = set()
    waiting, seen = list(texts), set[Path]()
    while waiting:
        text = waiting.pop()
        words.update(_WORD.findall(text))
        for folder in folders:
            for name in set(_FILE.findall(text)):
                path = folder / name
                if path in seen or len(seen) >= _MOST_FILES or not path.is_file():
                    continue
                seen.add(path)
                with path.open(errors="replace") as file:
                    waiting.append(file.read(_LARGEST_FILE))
    return words

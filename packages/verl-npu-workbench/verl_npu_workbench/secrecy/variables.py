"""The environment of a program in a sandbox: what is allowed of the user's, and of that nothing that may be secret.

Allowed are variables that a job's processes are known to read, and those that the script names, or a file that it
names: a script is to be judged with the values that it would have. In place of a secret stands a word that leads back
to it, so that a script which asks whether it is set gets the answer that it would get.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from .masking import is_secret

OF_A_JOB = re.compile(
    r"(?:VERL|ASCEND|HCCL|NPU|PYTORCH|TORCH|VLLM|SGLANG|RAY|GLOO|TP|OMP|TASK_QUEUE|CPU_AFFINITY|MULTI_STREAM"
    r"|COMBINED|ATB|HF|HYDRA|VIRTUAL|LD_PRELOAD|LD_LIBRARY_PATH|CUDA|NCCL|LCCL|MINDSPEED|MEGATRON|TRITON|TRANSFORMERS"
    r"|TOKENIZERS|MKL|KMP|SLURM|MASTER|RANK|WORLD_SIZE|LOCAL_RANK|NODE_RANK|NNODES|PET|WG)(?:_.*)?"
)
"""What a job's processes read of their environment."""
_OF_A_PROGRAM = re.compile(r"PATH|USER|LOGNAME|LANG|LC_\w+|TZ|TERM|PYTHON\w*|CC|CXX|TMPDIR")
_WORD = re.compile(r"[A-Za-z_]\w*")
_FILE = re.compile(r"[\w.\-][\w./\-]*\.(?:sh|bash|env|py|ya?ml)\b")
_MOST_FILES, _LARGEST_FILE = 200, 1 << 20
_PLACEHOLDER = "masked-"
_PLACEHOLDERS = re.compile(rf"{_PLACEHOLDER}([A-Za-z_]\w*)")


def allowed(environ: Mapping[str, str], named: Iterable[str] = ()) -> dict[str, str]:
    """Return what a program in a sandbox gets of `environ`; `named` are variables that it is known to ask for."""
    names = set(named)
    return {
        name: f"{_PLACEHOLDER}{name}" if is_secret(name, value) else value
        for name, value in environ.items()
        if name in names or OF_A_JOB.fullmatch(name) or _OF_A_PROGRAM.fullmatch(name)
    }


def restored(text: str, environ: Mapping[str, str]) -> str:
    """Return a text with the secrets in it that `allowed` has left out, for what is started outside of a sandbox."""
    return _PLACEHOLDERS.sub(lambda found: environ.get(found[1], found[0]), text)


def words_of(texts: Iterable[str], *folders: Path) -> set[str]:
    """Return all words of texts that may be variables' names, and of the files in `folders` that they name."""
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

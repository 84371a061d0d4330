"""Whether a job that is started again goes on where it was."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..errors import LaunchError

__all__ = ["judge"]

_MODE, _EVERY = "trainer.resume_mode", "trainer.save_freq"


def judge(command: Sequence[str]) -> Iterator[str]:
    """Yield what is doubtful about restarts of this command; of a script nothing can be said.

    Raises:
        LaunchError: it would begin anew each time.
    """
    settings = dict(
        word.lstrip("+").split("=", 1) for word in command if "=" in word and word.lstrip("+")[:1].isalpha()
    )
    mode = settings.get(_MODE, "auto")
    if mode == "disable":
        raise LaunchError(
            subject="--restarts",
            expected=f"{_MODE}=auto, verl's default, with which a job goes on from its last checkpoint",
            found=f"{_MODE}={mode}",
            fix=f"leave {_MODE} out, or --restarts",
        )
    if mode == "resume_path":
        yield f"with {_MODE}={mode} each restart begins at that checkpoint, not at the last one"
    if any(word.startswith("verl.trainer.") for word in command) and _number(settings.get(_EVERY, "-1")) <= 0:
        yield f"without {_EVERY}=N no checkpoint is saved, and a restart begins anew"


def _number(text: str) -> int:
    # Hydra may make something else one.
    try:
        return int(text)
    except ValueError:
        return 1

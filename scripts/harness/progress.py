"""Shows the progress of a run: a line for each step, or a bar."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from harness.jobs import Job
from verl_npu.language import gettext as _
from verl_npu.language import translate


class Lines:
    """Prints one plain line for each step."""

    def __init__(self, steps: int, job: Job) -> None:
        self._steps, self._job = steps, job

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def __call__(self, step: int, metrics: dict[str, float]) -> None:
        value, seconds = metrics.get(self._job.metric), metrics.get("timing_s/step")
        shown = f"no {self._job.label}" if value is None else f"{self._job.label} {value:.3f}"
        took = "" if seconds is None else f"  {seconds:.2f} s"
        # Not translated, because `verl-npu doctor --log` and `verl-npu watch` read this line.
        print(f"step {step:>3}/{self._steps}  {shown}{took}", flush=True)


class Bar:
    """Shows a progress bar that advances with the steps."""

    def __init__(self, steps: int, job: Job, console: Console) -> None:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[shown]}"),
        )
        self._progress = Progress(*columns, console=console)
        self._task = self._progress.add_task(translate(_("starting verl")), total=steps, shown="")
        self._job = job

    def __enter__(self) -> Bar:
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def __call__(self, step: int, metrics: dict[str, float]) -> None:
        value, seconds = metrics.get(self._job.metric), metrics.get("timing_s/step")
        shown = "" if value is None else f"{self._job.label} {value:.3f}"
        shown += "" if seconds is None else "  " + translate(_("{seconds:.2f} s/step").format(seconds=seconds))
        self._progress.update(self._task, completed=step, description=translate(_("training")), shown=shown)

"""The terminal screen of `verl-npu watch`, which adapts to the terminal's width."""

from __future__ import annotations

import plotext
from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from verl_npu.language import gettext as _
from verl_npu.language import ngettext, translate
from verl_npu.reporting import clean

from ..logs.metrics import (
    ASYNCHRONOUS,
    DRIFT,
    ENTROPY,
    GRAD_NORM,
    LOSS,
    REWARD,
    STEP_SECONDS,
    Metric,
    drawable,
    number,
)
from ..watch import State

_CURVES = (REWARD, LOSS, ENTROPY, GRAD_NORM, DRIFT, STEP_SECONDS)
_CHART_HEIGHT = 9
_NARROWEST = 36
"""The columns of the narrowest chart. In a narrower one, the axis would leave no room for the curve."""
_MOST_ODD = 6
_BAR = 20
_QUIET = 5.0
_TICKS = 5


def render(state: State, console: Console, height: int | None = None, quiet: float = 0.0) -> RenderableType:
    """Return the screen. It shows the anomalies, the phases of a step, the latest numbers, and as many curves as fit.

    With a `height`, the screen is limited to that many lines. `quiet` is the number of seconds since the log's last
    new line.
    """
    parts: list[RenderableType] = [_head(state, quiet), *_notes(state), *_odd(state), _last(state)]
    if state.phases:
        parts.append(_phases(state, console.width))
    if state.waiting and state.waiting.text:
        parts.append(Text(translate(state.waiting.text)))
    room = None if height is None else height - _lines(parts, console)
    parts.extend(_charts(state, console.width, room))
    return Group(*parts)


def _lines(parts: list[RenderableType], console: Console) -> int:
    return len(console.render_lines(Group(*parts), pad=False))


def _head(state: State, quiet: float) -> Text:
    text = Text(translate(_("step {step}").format(step=state.step)), style="bold")
    if quiet > _QUIET:
        text.append(translate(_("  nothing new for {quiet:.0f} s").format(quiet=quiet)))
    if state.log.simulated:
        text.append("  SIMULATED", style="bold yellow")
    return text.append(f"  {clean(state.log.source)}", style="dim")


def _notes(state: State) -> list[Text]:
    return [Text(translate(_("note: {note}").format(note=clean(note))), style="dim") for note in state.log.notes()]


def _odd(state: State) -> list[Text]:
    ending = state.ending
    stands = []
    if ending is not None and ending.text():
        stands = [Text(clean(translate(ending.text())), style="red" if ending.odd else "dim")]
    if not state.odd:
        return (
            stands
            if ending is not None and ending.odd
            else [*stands, Text(translate(_("nothing odd")), style="green")]
        )
    shown = [
        Text(
            translate(_("{kind}, step {step}: {odd}").format(kind=odd.kind.value, step=odd.step, odd=clean(odd.text))),
            style="red",
        )
        for odd in state.odd
    ]
    left = len(shown) - _MOST_ODD
    # The latest ones can still be acted upon.
    said = ngettext("{left} earlier anomaly", "{left} earlier anomalies", left).format(left=left)
    more = [Text(translate(said), style="red")] if left > 0 else []
    return [*stands, *more, *shown[-_MOST_ODD:]]


def _last(state: State) -> Text:
    numbers = (
        [_("{tokens_per_second:.4g} tokens/s").format(tokens_per_second=state.tokens_per_second)]
        if state.tokens_per_second is not None
        else []
    )
    if state.throughput is not None:
        numbers.append(f"{state.throughput:.4g} tokens/s/NPU")
    for metric in (*_CURVES, *ASYNCHRONOUS):
        value = metric.of(state.log).get(state.step)
        if value is not None:
            numbers.append(_("{metric} {value}").format(metric=metric.title, value=number(value)))
    return Text(translate(_(", ").join(numbers)))


def _phases(state: State, width: int) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    heads = (_("phase"), "s", _("usual"), _("share"))
    for head in heads:
        table.add_column(translate(head), justify="left" if head in ("phase", "share") else "right", no_wrap=True)
    whole = sum(phase.seconds for phase in state.phases)
    for phase in state.phases:
        share = phase.seconds / whole if whole else 0.0
        bar = "█" * round(share * min(_BAR, max(0, width - 45)))
        table.add_row(
            # As a Text, because the table would read brackets in a name as markup.
            Text(clean(translate(phase.name))),
            f"{phase.seconds:.3g}",
            f"{phase.usual:.3g}",
            Text(f"{share:4.0%} {bar}", style="cyan"),
        )
    return table


def _charts(state: State, width: int, room: int | None) -> list[RenderableType]:
    across = max(1, min(3, width // 60))
    each = min(width // across - across, 90)
    if each < _NARROWEST:
        return []
    drawn: list[RenderableType] = []
    for metric in _CURVES:
        values = {step: value for step, value in metric.of(state.log).items() if drawable(value)}
        if len(values) > 1:
            drawn.append(_chart(metric, values, each))
    rows = len(drawn) if room is None else max(0, room // _CHART_HEIGHT)
    shown = drawn[: rows * across]
    return [Columns(shown[row : row + across]) for row in range(0, len(shown), across)]


def _chart(metric: Metric, values: dict[int, float], width: int) -> Text:
    plotext.clear_figure()
    plotext.plot_size(width, _CHART_HEIGHT)
    plotext.theme("clear")
    plotext.title(translate(metric.title))
    plotext.plot(list(values), list(values.values()), marker="braille")
    first, last = min(values), max(values)
    plotext.xticks(sorted({round(first + (last - first) * tick / (_TICKS - 1)) for tick in range(_TICKS)}))
    return Text(plotext.uncolorize(plotext.build()).rstrip("\n"))

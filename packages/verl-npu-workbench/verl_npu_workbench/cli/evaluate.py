"""`verl-npu evaluate`: a model behind an endpoint, on a data set, by the training's own reward."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import click

from verl_npu import progress
from verl_npu.cli import terminal
from verl_npu.cli.options import example, json_option
from verl_npu.errors import EvaluationError
from verl_npu.language import gettext as _

from ..evaluation import dataset, reward
from ..evaluation.endpoint import Sampling
from ..evaluation.evaluation import Plan
from ..evaluation.evaluation import evaluate as run
from ..evaluation.record import ANSWERS
from ..evaluation.report import Figures, Interval, Report, comparable, content, difference, report

_PATH = click.Path(path_type=Path)


@click.command(
    epilog=example(
        "verl-npu evaluate test.parquet --rounds 16 --output before",
        "verl-npu evaluate test.parquet --rounds 16 --output after --against before",
    )
)
@click.argument("words", nargs=-1, metavar="DATA")
@click.option("--url", default="http://127.0.0.1:8000/v1", show_default=True, help="The endpoint.")
@click.option("--model", metavar="NAME", help="Which of its models [default: the only one].")
@click.option("--rounds", type=click.IntRange(1), default=1, show_default=True, help="Answers to each prompt.")
@click.option("--rows", type=click.IntRange(1), help="Ask the first so many rows alone.")
@click.option("--temperature", type=click.FloatRange(0), default=1.0, show_default=True)
@click.option("--top-p", type=click.FloatRange(0, 1), default=1.0, show_default=True)
@click.option("--top-k", type=int, help="A setting of vLLM's; -1 for all.")
@click.option("--max-tokens", type=click.IntRange(1), help="The longest answer [default: the server's].")
@click.option("--seed", type=int, help="Draw each answer by a seed of its own, made from this one.")
@click.option("--chat-template", metavar="JSON", default="{}", help="data.apply_chat_template_kwargs of the training.")
@click.option(
    "--reward", "file", metavar="FILE", type=_PATH, help="custom_reward_function.path [default: verl's own]."
)
@click.option("--reward-name", default="compute_score", show_default=True, help="custom_reward_function.name.")
@click.option("--reward-arguments", metavar="JSON", default="{}", help="custom_reward_function.reward_kwargs.")
@click.option("--correct-from", type=float, default=1.0, show_default=True, help="The score that pass@k counts.")
@click.option("--output", type=_PATH, default=Path("outputs/evaluation"), show_default=True, help="Keeps the answers.")
@click.option(
    "--against", metavar="DIR", type=_PATH, help="The --output of another evaluation, shown beside this one."
)
@click.option("--concurrency", type=click.IntRange(1), default=64, show_default=True, help="Requests at a time.")
@json_option()
def evaluate(
    words: tuple[str, ...],
    url: str,
    model: str | None,
    rounds: int,
    rows: int | None,
    temperature: float,
    top_p: float,
    top_k: int | None,
    max_tokens: int | None,
    seed: int | None,
    chat_template: str,
    file: Path | None,
    reward_name: str,
    reward_arguments: str,
    correct_from: float,
    output: Path,
    against: Path | None,
    concurrency: int,
    as_json: bool,
) -> None:
    """Evaluate a model by the reward that it was trained with.

    DATA is a parquet file in verl's layout. Each prompt is asked --rounds times at an OpenAI-style endpoint, such as
    that of `verl-npu serve`. Each answer is kept in --output as it comes: the same command goes on after a kill. Give
    the settings of the training's validation (its temperature, response length and chat template) to compare with it.

    Exit status: 0 evaluated, 2 not, 130 ended by Ctrl-C.
    """
    if len(words) != 1:
        raise EvaluationError(
            subject="verl-npu evaluate",
            expected=_("one DATA, a parquet file"),
            found=" ".join(words) or _("none"),
            fix=_("see verl-npu evaluate --help"),
        )
    sampling = Sampling(temperature, top_p, top_k, max_tokens, seed, _table("--chat-template", chat_template))
    plan = Plan(
        dataset=dataset.read(Path(words[0]), rows),
        reward=reward.load(file, reward_name, _table("--reward-arguments", reward_arguments)),
        url=url.rstrip("/"),
        model=model,
        rounds=rounds,
        sampling=sampling,
        output=output,
        concurrency=concurrency,
    )
    other = report(against, correct_from) if against is not None else None
    try:
        with progress.step(_("asking {url}").format(url=plan.url)) as asking:

            def tell(done: int, total: int, mean: float) -> None:
                asking.total, asking.done, asking.unit = total, done, "answers"
                asking.detail = _("mean {mean:.4f}").format(mean=mean) if done else ""

            run(plan, tell)
    except KeyboardInterrupt:
        terminal.fail(
            _("{output} has what was answered, and the same command goes on from there").format(output=output)
        )
        raise
    made = report(output, correct_from)
    if as_json:
        click.echo(json.dumps(content(made, other), indent=2))
    else:
        _print(made, other)


def _table(option: str, text: str) -> Mapping[str, object]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise EvaluationError(
            subject=option,
            expected=_("an object in JSON"),
            found=text,
            fix=_("for example '{\"enable_thinking\": false}'"),
        )
    return found


_STYLES = {"higher": "green", "lower": "red"}


def _print(made: Report, other: Report | None) -> None:
    """Print the figures; raises EvaluationError if the other one is not comparable."""
    notes = comparable(made, other) if other is not None else []
    both = [other, made] if other is not None else [made]
    heads = ["before", "after"] if other is not None else ["value"]
    for label, each in zip(heads if other is not None else ["model"], both, strict=True):
        model = each.settings["model"]
        root = f" ({model['root']})" if model["root"] not in ("", model["name"]) else ""
        terminal.line(
            _("{label}: {name}{root}, {prompts} prompts, {answers} answers").format(
                label=label, name=model["name"], root=root, prompts=each.total.prompts, answers=each.total.answers
            )
        )
    _figures(heads, [each.total for each in both])
    for name in made.sources:
        terminal.line(terminal.styled(name, "bold"))
        _figures(heads, [each.sources[name] for each in both])
    for note in notes:
        terminal.paragraph(note, label=_("  note: "), indent="    ")
    if other is not None:
        gap = difference(made.entries, other.entries)
        reach = _(", between {between}").format(between=_between(gap.interval)) if gap.interval else ""
        verdict = terminal.styled(gap.verdict, _STYLES.get(gap.verdict, "yellow"))
        terminal.line(
            verdict,
            _(": the mean differs by {mean:+.4f}{reach}, over {prompts} prompts").format(
                mean=gap.mean, reach=reach, prompts=gap.prompts
            ),
        )
    terminal.line(_("answers: {folder}").format(folder=made.folder / ANSWERS))


def _figures(heads: Sequence[str], columns: Sequence[Figures]) -> None:
    rows = [("", *heads, ""), *_rows(columns)]
    terminal.table(rows, [""] * len(rows), indent="  ")


def _rows(columns: Sequence[Figures]) -> Iterator[tuple[str, ...]]:
    yield _("mean"), *(f"{each.mean:.4f}" for each in columns), _("of all answers' scores")
    yield "95 %", *(_between(each.over_prompts) for each in columns), _("of the mean, over prompts")
    yield "95 %", *(_between(each.over_rounds) for each in columns), _("of the mean, over rounds of these prompts")
    spreads = ["-" if each.spread is None else f"{each.spread:.4f}" for each in columns]
    yield _("spread"), *spreads, _("standard deviation of the rounds' means")
    extremes = [
        _("{rounds:.4f} to {each_rounds:.4f}").format(rounds=min(each.rounds), each_rounds=max(each.rounds))
        for each in columns
    ]
    yield _("rounds"), *extremes, _("lowest and highest mean of a round")
    for k in columns[-1].pass_at:
        yield f"pass@{k}", *(_share(each.pass_at.get(k)) for each in columns), _("without bias")
    yield _("cut"), *(_share(each.cut) for each in columns), _("answers that ended at the limit of tokens")
    lengths = ["-" if each.tokens is None else f"{each.tokens:.1f}" for each in columns]
    yield _("tokens"), *lengths, _("mean length of an answer")


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.2f} %"


def _between(interval: Interval | None) -> str:
    return "-" if interval is None else _("{low:.4f} to {high:.4f}").format(low=interval.low, high=interval.high)

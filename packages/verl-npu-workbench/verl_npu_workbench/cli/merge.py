"""`verl-npu merge`: a checkpoint of a training made into a model of Hugging Face's format."""

from __future__ import annotations

import json
from pathlib import Path

import click

from verl_npu.cli import terminal
from verl_npu.cli.options import example, json_option
from verl_npu.language import gettext as _

from ..checkpoint import layout
from ..checkpoint.merging import Merged
from ..checkpoint.merging import merge as run


@click.command(
    epilog=example(
        "verl-npu merge checkpoints",
        "verl-npu merge checkpoints/global_step_100/actor --target models/step-100",
    )
)
@click.argument("checkpoint", type=click.Path(path_type=Path))
@click.option(
    "--target",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="The model's folder [default: merged in the step's].",
)
@click.option("--tie-word-embedding", is_flag=True, help="Megatron: leave out the output layer, which is the input's.")
@click.option("--trust-remote-code", is_flag=True, help="Run the model's own code where its configuration names some.")
@json_option()
def merge(
    checkpoint: Path, target: Path | None, tie_word_embedding: bool, trust_remote_code: bool, as_json: bool
) -> None:
    """Merge a checkpoint into a model that transformers and vLLM load.

    CHECKPOINT is the job's folder of checkpoints (its latest step is taken), a step's, or a model's in it. Whether
    FSDP, FSDP2 or Megatron saved it is told by its files. verl's own merger merges it; no NPU is needed. "merged" is
    said after each tensor on disk was compared with the shards. The checkpoint is only read.

    Exit status: 0 merged and read back, 2 not: nothing was written.
    """
    found = layout.find(checkpoint)
    options = [
        *(["--tie-word-embedding"] if tie_word_embedding else []),
        *(["--trust-remote-code"] if trust_remote_code else []),
    ]
    target = target or found.folder.with_name(f"{found.folder.name}-merged")
    made = run(found, target, tuple(options), _quiet if as_json else terminal.echo)
    if as_json:
        click.echo(json.dumps(_content(made), indent=2))
    else:
        _print(made)


def _quiet(line: str) -> None:
    """Say nothing: the result is all that a program reads."""


def _print(made: Merged) -> None:
    compared = made.compared
    terminal.line(terminal.styled("merged", "green"), f": {made.target}")
    dtypes = f"{', '.join(compared.dtypes)}"
    if compared.shard_dtypes != compared.dtypes:
        dtypes = _("{dtypes}, to which verl rounds the shards' {shard_dtypes}").format(
            dtypes=dtypes, shard_dtypes=_(", ").join(compared.shard_dtypes)
        )
    terminal.paragraph(
        _("{tensors} tensors with {values} values are those of the shards, bit by bit ({dtypes})").format(
            tensors=compared.tensors, values=compared.values, dtypes=dtypes
        ),
        indent="  ",
    )
    if made.is_value_model:
        terminal.paragraph(
            _("a value model: load it by AutoModelForTokenClassification, whatever its config.json names"), indent="  "
        )
    if compared.tied:
        terminal.paragraph(
            _("left out, because it is the input layer's tensor: {tied}").format(tied=_(", ").join(compared.tied)),
            indent="  ",
        )
    if compared.renamed:
        old, new = compared.renamed[0]
        terminal.paragraph(
            _("{count} of them have another name than in the shards, such as {new} for {old}").format(
                count=len(compared.renamed), new=new, old=old
            ),
            indent="  ",
        )


def _content(made: Merged) -> dict[str, object]:
    compared = made.compared
    return {
        "checkpoint": str(made.layout.folder),
        "backend": made.layout.backend.value,
        "target": str(made.target),
        "value_model": made.is_value_model,
        "tensors": compared.tensors,
        "values": compared.values,
        "shard_dtypes": list(compared.shard_dtypes),
        "dtypes": list(compared.dtypes),
        "tied": list(compared.tied),
        "renamed": dict(compared.renamed),
    }

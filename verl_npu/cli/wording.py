"""Help texts of the commands, and the texts of click itself, in the current language."""

from __future__ import annotations

import copy
from collections.abc import Iterable

import click
from click import core, decorators, exceptions, formatting, types

from ..language import gettext, is_english, translate
from . import terminal

# click's own messages. click looks each one up by gettext, in a domain of its own.
_ = gettext
CLICK = (
    _("Usage:"),
    _("Options"),
    _("Commands"),
    _("Show this message and exit."),
    _("Show the version and exit."),
    _("default: {default}"),
    _("required"),
    _("Error: {message}"),
    _("Try '{command} {option}' for help."),
    _("Invalid value: {message}"),
    _("Invalid value for {param_hint}: {message}"),
    _("Missing argument"),
    _("Missing option"),
    _("Missing command."),
    _("Choose from:\n\t{choices}"),
    _("No such option {name!r}."),
    _("No such command {name!r}."),
    _("Option {name!r} does not take a value."),
    _("{value!r} is not a valid {number_type}."),
    _("{value} is not in the range {range}."),
    _("{name} {filename!r} does not exist."),
    _("{name} {filename!r} is a file."),
    _("{name} {filename!r} is a directory."),
    _("{name} {filename!r} is not readable."),
    _("{name} {filename!r} is not writable."),
    _("file"),
    _("directory"),
    _("path"),
)


def translate_click() -> None:
    """Make click use verl-npu's translations of click's messages."""
    for module in (core, decorators, exceptions, formatting, types):
        for name, ours in (("_", _translate_for_click), ("ngettext", _translate_plural_for_click)):
            if hasattr(module, name):
                setattr(module, name, ours)


def _translate_for_click(text: str) -> str:
    return translate(gettext(text))


def _translate_plural_for_click(one: str, many: str, number: int) -> str:
    return translate(gettext(one if number == 1 else many))


def texts(help: str) -> list[str]:
    """Split a help text into the parts that are translated one by one.

    A part is a paragraph, joined into one line. If click must not reflow a paragraph, each line of the paragraph is a
    part instead. The indented lines of such a paragraph are omitted, because they are commands.
    """
    found = []
    for part in help.strip().split("\n\n"):
        if _is_verbatim(part):
            found += [line for line in part.splitlines()[1:] if not line.startswith(" ")]
        else:
            found.append(" ".join(part.split()))
    return [text for text in found if text]


def _is_verbatim(paragraph: str) -> bool:
    return paragraph.startswith("\b\n")


def _translated_help(help: str) -> str:
    """Return a help text in the current language."""
    shown = []
    for part in help.strip().split("\n\n"):
        if _is_verbatim(part):
            lines = part.splitlines()
            shown.append("\n".join(line if line[:1] in "\b " else _translate_for_click(line) for line in lines))
        else:
            shown.append(_translate_for_click(" ".join(part.split())))
    return "\n\n".join(shown)


def translated(command: click.Command) -> click.Command:
    """Return a command with its help in the current language. In English, return the command unchanged."""
    if is_english():
        return command
    made = copy.copy(command)
    made.context_class = _Context
    made.help = _translated_help(command.help or "")
    made.short_help = _first_sentence(command)
    made.epilog = _translated_help(command.epilog or "")
    made.params = [_translated_parameter(each) for each in command.params]
    made._help_option = None  # click caches it with its text
    return made


def help_of(command: click.Command, ctx: click.Context) -> str:
    """Return the help of a command, given an existing click context."""
    made = translated(command)
    if made is not command:
        ctx.formatter_class = _Formatter
    return click.Command.get_help(made, ctx)


def _translated_parameter(parameter: click.Parameter) -> click.Parameter:
    if not isinstance(parameter, click.Option) or not parameter.help:
        return parameter
    made = copy.copy(parameter)
    made.help = _translated_help(parameter.help)
    return made


def _first_sentence(command: click.Command) -> str:
    text = _translate_for_click(texts(command.help or "")[0])
    sentence, full_stop, _rest = text.partition("。")
    return sentence if full_stop else text


class _Formatter(click.HelpFormatter):
    """A help formatter that wraps lines by the columns that characters take on a terminal."""

    def write_text(self, text: str) -> None:
        indent = " " * self.current_indent
        shown = []
        for part in text.split("\n\n"):
            lines = part.splitlines()
            if lines and lines[0].strip() == "\b":
                shown.append("\n".join(indent + line for line in lines[1:]))
            else:
                shown.append("\n".join(terminal.wrapped(" ".join(lines), self.width, indent, indent)))
        self.write("\n\n".join(shown) + "\n")

    def write_dl(self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        shown = list(rows)
        first = min(max(terminal.cells(term) for term, _text in shown), col_max) + col_spacing
        indent = " " * self.current_indent
        below = indent + " " * first
        for term, text in shown:
            lines = terminal.wrapped(text, max(self.width - 2, first + 10), below, below) or [below]
            if terminal.cells(term) <= first - col_spacing:
                lines[0] = indent + terminal.padded(term, first) + lines[0][len(below) :]
            else:
                lines.insert(0, indent + term)
            self.write("".join(f"{line.rstrip()}\n" for line in lines))


class _Context(click.Context):
    formatter_class = _Formatter

"""Makes the translation catalogues for the texts that commands print, one for the plugin and one for the workbench.

They are locale/*/LC_MESSAGES/verl_npu.po and .mo in verl_npu, and verl_npu_workbench.po and .mo in the workbench.

python scripts/maintain/catalogue.py            collect all texts, keep their translations, compile
python scripts/maintain/catalogue.py --check    status 1 if a catalogue is not up to date

Afterwards a new text has an empty translation. Write it into the .po, and run this again.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import product
from pathlib import Path

import click
from babel.messages.catalog import Catalog, Message
from babel.messages.extract import extract_from_file
from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po, write_po
from verl_npu_workbench import codes, translations
from verl_npu_workbench.diagnosis.rules import CAUSES, KNOWN

from verl_npu import codes as plugins_codes
from verl_npu import language as plugin
from verl_npu.cli import COMMANDS, wording
from verl_npu.cli import main as command
from verl_npu.language import CHINESE

# The scripts are not an installed package.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from maintain.section import options

PROJECT = Path(__file__).resolve().parents[2]
LANGUAGES = (CHINESE,)
_KEYWORDS: dict[str, tuple[int, ...] | None] = {"_": None, "ngettext": (1, 2)}
_WHEN = datetime(2026, 1, 1, tzinfo=timezone.utc)
"""A fixed date for the head of a catalogue, because the current time would differ in each change."""
_WIDTH = 119
SCRIPTS = PROJECT / "scripts"
CAUSES_FILE = KNOWN.with_name("causes.json")


@dataclass(frozen=True, slots=True)
class Catalogues:
    """The catalogues of one distribution."""

    domain: str
    folder: Path
    """The folder that has one folder for each language."""

    @property
    def package(self) -> Path:
        return self.folder.parent


PLUGIN = Catalogues(plugin.DOMAIN, Path(plugin.FOLDER))
WORKBENCH = Catalogues(translations.DOMAIN, translations.LOCALE)
CATALOGUES = (PLUGIN, WORKBENCH)


def po(catalogues: Catalogues, language: str) -> Path:
    """Return the .po file, which people edit."""
    return catalogues.folder / language / "LC_MESSAGES" / f"{catalogues.domain}.po"


def texts(catalogues: Catalogues) -> Iterator[tuple[str | tuple[str, str], str]]:
    """Yield each text for people, or its singular and plural, with the file that contains it."""
    files = sorted(catalogues.package.rglob("*.py"))
    if catalogues is WORKBENCH:
        files += sorted((*SCRIPTS.glob("*.py"), *SCRIPTS.glob("harness/**/*.py")))
    for path in files:
        for _line, words, _comments, _context in extract_from_file("python", path, keywords=_KEYWORDS):
            yield words, str(path.relative_to(PROJECT))
    if catalogues is WORKBENCH:
        yield from _of_rules()
    yield from _of_codes(catalogues)
    for one, where in _commands(command):
        is_plugins = one is command or one.name in COMMANDS
        if is_plugins is (catalogues is PLUGIN):
            yield from _helps(one, where)


def _of_codes(catalogues: Catalogues) -> Iterator[tuple[str, str]]:
    """Yield the texts of `verl-npu explain` about codes: the subject, the occasion, and the labels."""
    of = codes if catalogues is WORKBENCH else plugins_codes
    meanings = codes.meanings() if catalogues is WORKBENCH else plugins_codes.own()
    where = str(Path(str(of.__file__)).relative_to(PROJECT))
    for each in meanings:
        yield each.said_by, where
        for label, text in each.rows.items():
            yield label, where
            if label == "about":
                # Some texts have values filled in. Their template is translated.
                yield getattr(text, "_words", text), where


def _of_rules() -> Iterator[tuple[str, str]]:
    for path in sorted(KNOWN.glob("*.json")):
        for row in json.loads(path.read_text("utf-8"))["rules"]:
            yield from (
                (row[key], str(path.relative_to(PROJECT))) for key in ("means", "fix", "versions") if key in row
            )
    yield from ((means, str(CAUSES_FILE.relative_to(PROJECT))) for means in CAUSES.values())


def _commands(group: click.Group) -> Iterator[tuple[click.Command, str]]:
    yield group, "verl-npu --help"
    # Commands are imported when they are looked up.
    context = click.Context(group)
    for one in filter(None, (group.get_command(context, name) for name in group.list_commands(context))):
        yield one, f"verl-npu {one.name} --help"


def _helps(one: click.Command, where: str) -> Iterator[tuple[str, str]]:
    options = (each.help for each in one.params if isinstance(each, click.Option))
    for help in (one.help, one.epilog, *options):
        for text in wording.texts(help or ""):
            yield text, where


def collected(catalogues: Catalogues) -> Catalog:
    """Return a catalogue of all texts, without translations."""
    found = Catalog()
    for words, where in texts(catalogues):
        found.add(words, locations=[(where, 0)])
    return found


def made(catalogues: Catalogues, language: str) -> Catalog:
    """Return the catalogue of a language: all texts, with their existing translations."""
    path = po(catalogues, language)
    before = read_po(io.StringIO(path.read_text("utf-8")), locale=language) if path.is_file() else Catalog(language)
    after = Catalog(
        language,
        header_comment="# What the commands of verl-npu print, in the language LANGUAGE.".replace(
            "LANGUAGE", language
        ),
        project="verl-npu",
        version="",
        msgid_bugs_address="verl-npu",
        last_translator="verl-npu",
        language_team=language,
        creation_date=_WHEN,
        revision_date=_WHEN,
        fuzzy=False,
    )
    for message in collected(catalogues):
        if message.id:
            _add(after, message, before.get(message.id))
    return after


def _add(catalogue: Catalog, message: Message, before: Message | None) -> None:
    translation = before.string if before is not None else ""
    plural = isinstance(message.id, tuple)
    if plural and not isinstance(translation, tuple):
        translation = (translation,)
    if not plural and isinstance(translation, tuple):
        translation = translation[0]
    files = sorted({(file, 0) for file, _line in message.locations})
    added = catalogue.add(message.id, translation, locations=files)
    added.flags.clear()  # a percent sign is plain text here


def untranslated(catalogue: Catalog) -> list[str | tuple[str, str]]:
    """Return the texts of a catalogue that have no translation."""
    return [each.id for each in catalogue if each.id and not all(each.string if each.pluralizable else [each.string])]


def written(catalogue: Catalog) -> bytes:
    """Return a catalogue in the .po format."""
    stream = io.BytesIO()
    write_po(stream, catalogue, width=_WIDTH, sort_output=True, include_lineno=False)
    return stream.getvalue()


def compiled(catalogue: Catalog) -> bytes:
    """Return a catalogue in the .mo format, which gettext reads."""
    stream = io.BytesIO()
    write_mo(stream, catalogue)
    return stream.getvalue()


def _rewrite(check: bool) -> int:
    old = 0
    for catalogues, language in product(CATALOGUES, LANGUAGES):
        catalogue = made(catalogues, language)
        path = po(catalogues, language)
        for file, content in ((path, written(catalogue)), (path.with_suffix(".mo"), compiled(catalogue))):
            if file.is_file() and file.read_bytes() == content:
                continue
            old += 1
            if check:
                print(f"{file}: not up to date; run python {sys.argv[0]}", file=sys.stderr)
            else:
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(content)
                print(f"{file}: rewritten")
        lacking = untranslated(catalogue)
        if lacking:
            print(f'{path}: {len(lacking)} texts have no translation: look for msgstr ""', file=sys.stderr)
            old += 1
    return int(check and bool(old))


if __name__ == "__main__":
    sys.exit(_rewrite(options(__doc__).parse_args().check))

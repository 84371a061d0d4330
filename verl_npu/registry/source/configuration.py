"""What a key of upstream's YAML is by the files alone, with the groups that Hydra adds to them.

They are read line by line and within limits: the plugin depends on no library for YAML, and what makes a small file
large (anchors, merge keys) or executes something (tags) is not followed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from posixpath import dirname, join, normpath

from .tree import SourceTree

_MOST_FILES = 40
"""Files that are read for one key, as a list of defaults names others: an upstream's has a dozen."""
_MOST_DEFAULTS = 100
_LONGEST_LINE = 1000

Keys = tuple[str, ...]
Entry = tuple[Keys, str]
"""The keys that lead to a line of a file, and its text; what the list of defaults has is named by `_DEFAULTS`."""
_DEFAULTS = ("defaults", "-")


def value_of(file: str, key: str, tree: SourceTree) -> str | None:
    """Return the text after a key, which is empty for a section; None if neither the file nor its defaults have it.

    `file` is its path from the folder of the package, as `pkg/config/main.yaml`. Where an option depends on another
    one, as `${model_engine}_actor` does, that is what the same list of defaults has.
    """
    waiting = [(file, tuple(key.split(".")))]
    seen: list[tuple[str, Keys]] = []
    while waiting and len(seen) < _MOST_FILES:
        place = waiting.pop()
        if place in seen:
            continue
        seen.append(place)
        entries = _read(place[0], tree)
        own = [value for keys, value in entries if keys == place[1]]
        if own:
            return own[-1]
        defaults = [value for keys, value in entries if keys == _DEFAULTS]
        # What a later default has comes before what an earlier one has.
        waiting += _included(*place, defaults[:_MOST_DEFAULTS])
    return None


def _read(file: str, tree: SourceTree) -> Sequence[Entry]:
    data = tree.read(file)
    if data is None:
        return ()
    return tree.memory.recall(("configuration", data), lambda: tuple(_entries(data.decode("utf-8", "replace"))))


def _included(file: str, keys: Keys, defaults: Sequence[str]) -> Iterator[tuple[str, Keys]]:
    """Yield the files that a list of defaults adds, each with what the key is called in it."""
    chosen = {group.strip(): option.strip() for group, _, option in (default.partition(":") for default in defaults)}
    for default in (default for default in defaults if default != "_self_"):
        # `group@package: option`, or the name of a file beside this one.
        group, colon, option = default.partition(":")
        path, at, package = group.strip().partition("@")
        folder, name = (path.rpartition(" ")[2], option.strip()) if colon else ("", path)
        for variable, value in chosen.items():
            name = name.replace(f"${{{variable}}}", value)
        included = normpath(join(dirname(file), folder, f"{name}.yaml"))
        prefix = tuple((package if at else folder.replace("/", ".")).split(".")) if at or folder else ()
        if keys[: len(prefix)] == prefix:
            yield included, keys[len(prefix) :]
        if prefix and not at:
            yield included, keys  # it may say `@package _global_`


def _entries(text: str) -> Iterator[Entry]:
    """Yield the lines of a block mapping. Of lists only that of defaults counts, and blocks of text do not."""
    above: list[tuple[int, str]] = []
    inside = None
    """The depth of a list's element or of a block of text: what is deeper belongs to it."""
    for line in text.splitlines():
        content = line.strip(" ")
        depth = len(line) - len(line.lstrip(" "))
        if not content or content.startswith("#") or len(line) > _LONGEST_LINE:
            continue
        if inside is not None and depth > inside:
            continue
        inside = None
        if content.startswith("- "):
            inside = depth
            if [key for _, key in above] == ["defaults"]:
                yield _DEFAULTS, _plain(content[2:])
            continue
        key, colon, value = content.partition(":")
        if not colon or (value and not value.startswith(" ")):
            continue
        while above and above[-1][0] >= depth:
            above.pop()
        above.append((depth, _plain(key)))
        yield tuple(name for _, name in above), _plain(value)
        if value.strip().startswith(("|", ">")):
            inside = depth


def _plain(text: str) -> str:
    """Return a scalar without its quotes, or without the comment behind it."""
    text = text.strip()
    end = text.find(text[0], 1) if text[:1] in ("'", '"') else -1
    return text[1:end] if end > 0 else text.partition(" #")[0].strip()

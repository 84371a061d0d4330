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
Place = tuple[str, Keys, tuple[tuple[str, str], ...]]
"""A file, what the key is called in it, and the groups of which files that include it override the option."""


def value_of(file: str, key: str, tree: SourceTree) -> str | None:
    """Return the text after a key, which is empty for a section; None if neither the file nor its defaults have it.

    `file` is its path from the folder of the package, as `pkg/config/main.yaml`. Where an option depends on another
    one, as `${model_engine}_actor` does, that is what the same list of defaults has.
    """
    waiting: list[Place] = [(file, tuple(key.split(".")), ())]
    seen: list[Place] = []
    while waiting and len(seen) < _MOST_FILES:
        place = waiting.pop()
        if place in seen:
            continue
        seen.append(place)
        file, keys, _ = place
        entries = _read(file, tree)
        # A group that is added at the key itself is that section.
        own = [value for path, value in entries if path == keys] if keys else ["" for _ in entries]
        if own:
            return own[-1]
        defaults = [value for path, value in entries if path == _DEFAULTS]
        # What a later default has comes before what an earlier one has.
        waiting += _included(place, defaults[:_MOST_DEFAULTS])
    return None


def _read(file: str, tree: SourceTree) -> Sequence[Entry]:
    data = tree.read(file)
    if data is None:
        return ()
    return tree.memory.recall(("configuration", data), lambda: tuple(_entries(data.decode("utf-8", "replace"))))


def _included(place: Place, defaults: Sequence[str]) -> Iterator[Place]:
    """Yield the files that a list of defaults adds, each with what the key is called in it."""
    file, keys, overrides = place
    pairs = [(group.strip(), option.strip()) for group, _, option in (default.partition(":") for default in defaults)]
    # What is overridden from outside, or in this list, holds in all that it adds.
    own = ((group.removeprefix("override "), option) for group, option in pairs if group.startswith("override "))
    overrides = (*((group, option) for group, option in own if group not in dict(overrides)), *overrides)
    chosen = {**dict(pairs), **dict(overrides)}
    for group, option in pairs:
        if group == "_self_" or group.startswith("override "):
            continue
        # `group@package: option`, or the name of a file beside this one.
        path, at, package = group.partition("@")
        folder, name = (path.rpartition(" ")[2], chosen[group]) if option else ("", path)
        for variable, value in chosen.items():
            name = name.replace(f"${{{variable}}}", value)
        included = normpath(join(dirname(file), folder, f"{name}.yaml"))
        prefix = tuple((package if at else folder.replace("/", ".")).split(".")) if at or folder else ()
        if keys[: len(prefix)] == prefix:
            yield included, keys[len(prefix) :], overrides
        if prefix and not at:
            yield included, keys, overrides  # it may say `@package _global_`


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

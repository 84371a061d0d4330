"""The value of a key in upstream's YAML files, including the files that Hydra would add to them.

The files are read line by line and within limits. The plugin depends on no YAML library. It does not follow anchors
and merge keys, which can make a small file huge, or tags, which can execute code.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from posixpath import dirname, join, normpath

from .tree import SourceTree

_MOST_FILES = 40
"""The maximum number of files that are read for one key. Each list of defaults names more files. Upstream has a
dozen."""
_MOST_DEFAULTS = 100
_LONGEST_LINE = 1000

Keys = tuple[str, ...]
Entry = tuple[Keys, str]
"""A line of a file: the keys that lead to it, and its text. An entry in the list of defaults has the keys
`_DEFAULTS`."""
_DEFAULTS = ("defaults", "-")
Place = tuple[str, Keys, tuple[tuple[str, str], ...]]
"""A place to look for a key: a file, the key's name within that file, and, by group, the options that the files which
include it override."""


def value_of(file: str, key: str, tree: SourceTree) -> str | None:
    """Return the value of a key in a YAML file as text. The value of a section is an empty string. If neither the file
    nor its defaults have the key, return None.

    `file` is the path relative to the package's parent folder, such as `pkg/config/main.yaml`. If an entry of
    the defaults contains an option, as in `${model_engine}_actor`, the option is looked up in the same defaults.
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
        # If a group is added at the key itself, the whole file is that section.
        own = [value for path, value in entries if path == keys] if keys else ["" for _ in entries]
        if own:
            return own[-1]
        defaults = [value for path, value in entries if path == _DEFAULTS]
        # Later defaults win over earlier ones, so they are popped first.
        waiting += _included(place, defaults[:_MOST_DEFAULTS])
    return None


def _read(file: str, tree: SourceTree) -> Sequence[Entry]:
    data = tree.read(file)
    if data is None:
        return ()
    return tree.memory.recall(("configuration", data), lambda: tuple(_entries(data.decode("utf-8", "replace"))))


def _included(place: Place, defaults: Sequence[str]) -> Iterator[Place]:
    """Yield the places that a list of defaults adds."""
    file, keys, overrides = place
    pairs = [(group.strip(), option.strip()) for group, _, option in (default.partition(":") for default in defaults)]
    # An override from outside or from this list also holds in every file that the list adds.
    own = ((group.removeprefix("override "), option) for group, option in pairs if group.startswith("override "))
    overrides = (*((group, option) for group, option in own if group not in dict(overrides)), *overrides)
    chosen = {**dict(pairs), **dict(overrides)}
    for group, option in pairs:
        if group == "_self_" or group.startswith("override "):
            continue
        # `group@package: option`, or the name of a file in the same folder.
        path, at, package = group.partition("@")
        folder, name = (path.rpartition(" ")[2], chosen[group]) if option else ("", path)
        for variable, value in chosen.items():
            name = name.replace(f"${{{variable}}}", value)
        included = normpath(join(dirname(file), folder, f"{name}.yaml"))
        prefix = tuple((package if at else folder.replace("/", ".")).split(".")) if at or folder else ()
        if keys[: len(prefix)] == prefix:
            yield included, keys[len(prefix) :], overrides
        if prefix and not at:
            yield included, keys, overrides  # the file may say `@package _global_`


def _entries(text: str) -> Iterator[Entry]:
    """Yield the lines of a block mapping. Blocks of text are skipped, and so are all lists except the list of
    defaults."""
    above: list[tuple[int, str]] = []
    inside = None
    """The depth of a list element or of a block of text. All deeper lines belong to it."""
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
    """Return a scalar without its quotes, and without a comment after it."""
    text = text.strip()
    end = text.find(text[0], 1) if text[:1] in ("'", '"') else -1
    return text[1:end] if end > 0 else text.partition(" #")[0].strip()

"""Composes a trainer's configuration with Hydra, in a process of its own that is started in the source tree.

It reads a request as JSON from stdin and writes the answer as JSON to stdout. Hydra keeps what it has composed in
global state, and looks for configurations relative to the folder that it is in.
"""

from __future__ import annotations

import json
import sys
from typing import Any  # Hydra and OmegaConf hand out what they have no types for.


def main() -> int:
    request = json.load(sys.stdin)
    sys.path.insert(0, request["tree"])
    # Whatever a resolver or a plugin prints must not be taken for the answer.
    answer, sys.stdout = sys.stdout, sys.stderr
    from hydra import compose, initialize_config_dir
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        with initialize_config_dir(version_base=None, config_dir=request["folder"]):
            config = compose(config_name=request["name"], overrides=request["overrides"])
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        # A parser's error does not name the override that it could not parse.
        override = getattr(error, "override", None)
        json.dump({"error": f"{override}: {error}" if override else str(error)}, answer)
        return 0
    values: dict[str, object] = {}
    interpolations: dict[str, str] = {}
    dangling: dict[str, str] = {}
    _flatten(config, "", values, interpolations, dangling)
    written = OmegaConf.to_container(config, resolve=False)
    content = {"values": values, "interpolations": interpolations, "dangling": dangling, "config": written}
    json.dump(content, answer, default=str)
    return 0


def _flatten(
    section: Any, prefix: str, values: dict[str, object], interpolations: dict[str, str], dangling: dict[str, str]
) -> None:
    """Write a section's values under their full keys, the interpolations that they are written as, and of those the
    ones that refer to a key that is not there."""
    from omegaconf import DictConfig, OmegaConf
    from omegaconf.errors import InterpolationKeyError, OmegaConfBaseException

    written = OmegaConf.to_container(section, resolve=False)
    for key in section:
        path = f"{prefix}{key}"
        text = written[key]
        if isinstance(text, str) and "${" in text:
            interpolations[path] = text
        try:
            value = section[key]
        except OmegaConfBaseException as error:
            if isinstance(error, InterpolationKeyError):
                dangling[path] = text
            value = text  # it refers to what exists only while a trainer runs, or must be given and is not
        if isinstance(value, DictConfig):
            values[path] = {}
            _flatten(value, f"{path}.", values, interpolations, dangling)
        else:
            values[path] = OmegaConf.to_container(value, resolve=False) if OmegaConf.is_config(value) else value


if __name__ == "__main__":
    sys.exit(main())

"""The program that composes a trainer's configuration with Hydra. It runs in the source tree, in a separate process.

It reads a request as JSON from stdin and writes the answer as JSON to stdout. A separate process is necessary because
Hydra keeps global state and looks for configurations relative to the working directory.
"""

from __future__ import annotations

import importlib
import json
import re
import sys
from types import ModuleType
from typing import Any  # Hydra and OmegaConf hand out what they have no types for.


def main() -> int:
    request = json.load(sys.stdin)
    sys.path.insert(0, request["tree"])
    # Output of a resolver or a plugin must not end up in the answer.
    answer, sys.stdout = sys.stdout, sys.stderr
    from hydra import compose, initialize_config_dir
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    def composed() -> Any:
        with initialize_config_dir(version_base=None, config_dir=request["folder"]):
            return compose(config_name=request["name"], overrides=request["overrides"])

    try:
        try:
            config = composed()
        except HydraException as error:
            if not _lacking(str(error)).startswith("verl."):
                raise
            # Hydra needs only verl's files. Its code needs packages that are not installed here.
            sys.modules["verl"] = ModuleType("verl")
            sys.modules["verl"].__path__ = [f"{request['tree']}/verl"]
            config = composed()
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        # The message of a parser's error does not name the override.
        override = getattr(error, "override", None)
        text = f"{override}: {error}" if override else str(error)
        json.dump({"error": text, "lacking": _lacking(text)}, answer)
        return 0
    values: dict[str, object] = {}
    interpolations: dict[str, str] = {}
    dangling: dict[str, str] = {}
    _flatten(config, "", values, interpolations, dangling)
    written = OmegaConf.to_container(config, resolve=False)
    content = {"values": values, "interpolations": interpolations, "dangling": dangling, "config": written}
    json.dump(content, answer, default=str)
    return 0


def _lacking(message: str) -> str:
    """Return the first package in Hydra's search path that cannot be imported here. Hydra has skipped it."""
    for name in re.findall(r"path=pkg://([\w.]+)", message):
        try:
            importlib.import_module(name)
        except Exception:  # whatever the package's code raises
            return str(name)
    return ""


def _flatten(
    section: Any, prefix: str, values: dict[str, object], interpolations: dict[str, str], dangling: dict[str, str]
) -> None:
    """Add a section's values to `values` by full key, its interpolations to `interpolations`, and its interpolations
    that refer to a missing key to `dangling`."""
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
            value = (
                text  # it refers to something that exists only in a running trainer, or it is mandatory and missing
            )
        if isinstance(value, DictConfig):
            values[path] = {}
            _flatten(value, f"{path}.", values, interpolations, dangling)
        else:
            values[path] = OmegaConf.to_container(value, resolve=False) if OmegaConf.is_config(value) else value


if __name__ == "__main__":
    sys.exit(main())

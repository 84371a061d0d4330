"""The API server's answer to a custom resource: its CRD's schema, read strictly.

Strictly means that a field that the schema does not name is an error, as with `kubectl apply --validate=strict`, and
that lists whose items have keys hold each key once. Rules in CEL are not read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import jsonschema
import yaml

# The file has a megabyte: the loader in C takes a second, the other one twelve.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Schema:
    """One version of a CRD."""

    def __init__(self, path: Path, version: str) -> None:
        versions = {each["name"]: each for each in yaml.load(path.read_text(), _LOADER)["spec"]["versions"]}
        self.schema = versions[version]["schema"]["openAPIV3Schema"]
        # The API server knows by itself what metadata is; the schema does not say.
        self.schema["properties"]["metadata"] = {
            "type": "object",
            "properties": {
                "name": {"type": "string"},
                **{
                    each: {"type": "object", "additionalProperties": {"type": "string"}}
                    for each in ("labels", "annotations")
                },
            },
        }
        _close(self.schema)
        self.validator = jsonschema.Draft202012Validator(self.schema)

    def refusals(self, resource: object) -> list[str]:
        """Return the reasons why the API server would refuse the resource; empty if it would not."""
        errors = [f"{error.json_path}: {error.message}" for error in self.validator.iter_errors(resource)]
        return errors + list(_repeated(self.schema, resource, "$"))


def _close(schema: object) -> None:
    if isinstance(schema, list):
        for each in schema:
            _close(each)
    elif isinstance(schema, dict):
        if "properties" in schema and not schema.get("x-kubernetes-preserve-unknown-fields"):
            schema.setdefault("additionalProperties", False)
        for each in schema.values():
            _close(each)


def _repeated(schema: Mapping, value: object, path: str) -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, each in value.items():
            yield from _repeated(schema.get("properties", {}).get(name, {}), each, f"{path}.{name}")
    elif isinstance(value, list):
        keys = schema.get("x-kubernetes-list-map-keys", ())
        found = [tuple(item.get(key) for key in keys) for item in value] if keys else []
        yield from (f"{path}: {each} is there twice" for each in {each for each in found if found.count(each) > 1})
        for number, item in enumerate(value):
            yield from _repeated(schema.get("items", {}), item, f"{path}[{number}]")

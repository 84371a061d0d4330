"""The example of `verl_npu.registry` works as it stands, and the names that the package offers exist and load late."""

from __future__ import annotations

import textwrap
from pathlib import Path

from testing.interpreter import python

from verl_npu import registry
from verl_npu.registry import facade


def example() -> str:
    """Return the block of code in the module's docstring."""
    assert registry.__doc__ is not None
    lines = registry.__doc__.splitlines()
    block = [line for line in lines if line.startswith("    ") or not line]
    return textwrap.dedent("\n".join(block))


def test_the_example_prints_what_it_says_where_no_verl_is_imported(tmp_path: Path) -> None:
    program = f"{example()}\nimport sys; print([name for name in ('verl', 'ray', 'torch') if name in sys.modules])"
    done = python("-c", program, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["3 applied", "[]"]
    assert "# 3 applied" in program


def test_every_name_of_the_facade_can_be_imported() -> None:
    assert [name for name in facade.__all__ if getattr(registry, name, None) is not getattr(facade, name)] == []
    assert not hasattr(registry, "NoSuchName")


def test_what_is_in_every_import_of_torch_loads_no_facade(tmp_path: Path) -> None:
    program = (
        "import verl_npu.registry.apply.hooks, sys; print([n for n in sys.modules if 'facade' in n or 'patch' in n])"
    )
    assert python("-c", program, cwd=tmp_path).stdout == "[]\n"

"""What the tests of scripts that are run in a sandbox share."""

from __future__ import annotations

import pytest

from verl_npu.errors import SandboxError
from verl_npu.tools.sandbox import sandbox_program


@pytest.fixture(scope="session")
def sandbox() -> None:
    """Skip if there is no program that makes a sandbox."""
    try:
        sandbox_program()
    except SandboxError as error:
        pytest.skip(str(error))

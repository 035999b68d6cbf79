"""Real evidence, recorded from hardware: see the README in its folder."""

from collections.abc import Callable
from pathlib import Path

import pytest

_EVIDENCE = Path(__file__).parents[2] / "vectors" / "evidence"


@pytest.fixture(scope="session")
def vector() -> Callable[[str], bytes]:
    """vector("dcap/sgx_quote") is that file's content."""
    return lambda name: (_EVIDENCE / name).read_bytes()

"""Real evidence, recorded from hardware. It is no part of the project, so it may be absent."""

from collections.abc import Callable
from pathlib import Path

import pytest

_VECTORS = Path(__file__).parents[3].parent / "shared" / "vectors"


@pytest.fixture(scope="session")
def vector() -> Callable[[str], bytes]:
    """vector("dcap/sgx_quote") is that file's content. Skips where the folder is absent."""
    if not _VECTORS.is_dir():
        pytest.skip(f"no recorded evidence at {_VECTORS}")
    return lambda name: (_VECTORS / name).read_bytes()

"""`flower(n=7, f=1)` gives a federation of Flower in this process: see harness.py."""

import importlib.util
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def flower(monkeypatch) -> Any:
    """Loaded when a test asks for it: where Flower is missing, tests are to be skipped."""
    name = "ostraka_flower_harness"
    if name not in sys.modules:
        path = Path(__file__).with_name("harness.py")
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    sys.modules[name].identify()
    monkeypatch.setattr("ostraka.flower.grid.time", sys.modules[name].CLOCK)
    return sys.modules[name].make


@pytest.fixture
def said() -> Iterator[list[str]]:
    """What was logged, on either side."""
    lines: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    keep, logger = Keep(), logging.getLogger("flwr.ostraka")
    level, silenced = logger.level, logger.disabled
    logger.setLevel(logging.DEBUG)
    logger.disabled = False
    logger.addHandler(keep)
    yield lines
    logger.removeHandler(keep)
    logger.setLevel(level)
    logger.disabled = silenced

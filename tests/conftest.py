"""Settings that every test shares.

OSTRAKA_SOAK=1 (make soak) asks for full counts; without it every test is sampled, and the same
examples are drawn each time.
"""

import os
import signal

# Tests run in parallel processes, so each has one BLAS thread. BLAS reads this when numpy is first
# imported, and the processes that tests start inherit it.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")

# Whoever starts the tests in the background starts them deaf to Ctrl-C, and with them all that they
# start. A handler is not passed on to those; they begin as at a terminal.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

from collections.abc import Callable
from typing import Any, NoReturn

import pytest
from hypothesis import HealthCheck, settings

_SOAK = os.environ.get("OSTRAKA_SOAK") == "1"

# No deadline and no check of slowness: on a busy machine both fail for no fault of the code.
_UNTIMED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.register_profile("sampled", _UNTIMED, derandomize=True, max_examples=60)
settings.register_profile("soak", _UNTIMED, max_examples=500)
settings.load_profile("soak" if _SOAK else "sampled")


def _refuse_to_become(program: str, *_: Any) -> NoReturn:
    raise AssertionError(f"a test would have become {program}, and no other test would have run")


for _name in ("execv", "execve"):
    setattr(os, _name, _refuse_to_become)


def pytest_report_header() -> str:
    return f"counts: {'full' if _SOAK else 'sampled'}"


@pytest.fixture(scope="session")
def scale() -> Callable[[int, int], int]:
    """scale(1_000, 100_000) is the first number in make test and the second in make soak."""

    def count(sampled: int, full: int) -> int:
        return full if _SOAK else sampled

    return count

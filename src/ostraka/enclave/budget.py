"""How much of the machine's memory the rows of a round may take."""

from contextlib import suppress
from pathlib import Path

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")
_SHARE = 2  # half, unless the federation file says otherwise


def default_budget(meminfo: Path = _MEMINFO, cgroup: Path = _CGROUP) -> int:
    """Half of the bytes that the machine has to spare, or its control group if that has less."""
    return min(_available(meminfo), _allowed(cgroup)) // _SHARE


def _available(meminfo: Path) -> int:
    with suppress(OSError, ValueError, IndexError):
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return 0  # All rows go to the spool.


def _allowed(cgroup: Path) -> int:
    """What is left of the group's limit; without one, no limit."""
    with suppress(OSError, ValueError):
        limit = int((cgroup / "memory.max").read_text())
        return max(0, limit - int((cgroup / "memory.current").read_text()))
    return 2**62

"""The figures of benchmarks: their noise, the folder that keeps them, and runs that were stopped.

Figures are kept as NAME.json, from which the report is drawn. The finished parts of a long
benchmark are kept in NAME.parts.jsonl, so that the same command resumes after it was stopped. Its
first line says what the parts belong to, and each of the others is a part, in the order in which
they were measured:

    {"layout": ..., "begun": ..., "of": {"code": ..., "machine": ..., "options": ...}}
    {"module": ..., "arguments": [...], "seconds": ..., "figures": {...}}
"""

import hashlib
import json
import math
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import ostraka
import ostraka_lab
from ostraka.encoding import pack
from ostraka.errors import ConfigError
from ostraka_lab.bench import machine
from ostraka_lab.bench.process import Begin, Figures, run_module

BENCHMARKS = ("peers", "paper", "scale", "shards", "leakage", "check")
REPORT = "report.html"

_LAYOUT = 5  # of the figures, for the page that is drawn from them
_PARTS_LAYOUT = 1
_PACKAGES = tuple(Path(package.__path__[0]) for package in (ostraka, ostraka_lab))
_OF_THE_MOMENT = ("available_gib", "load")

# The mean range of n normal samples, in standard deviations.
_MEAN_RANGE = {2: 1.128, 3: 1.693, 4: 2.059, 5: 2.326, 6: 2.534, 7: 2.704, 8: 2.847, 9: 2.970}
# The standard error of a median over that of a mean.
_MEDIAN = 1.253


def spread(runs: Sequence[float]) -> float:
    """(max - min) / median: 0.1 is ten per cent between the best and the worst run."""
    middle = statistics.median(runs)
    return (max(runs) - min(runs)) / middle if middle else 0.0


def noise(relative_range: float, runs: int) -> float:
    """The relative standard error of the median of `runs` runs with this relative range."""
    if runs < 2:
        return math.inf
    deviation = relative_range / _MEAN_RANGE[min(runs, max(_MEAN_RANGE))]
    return _MEDIAN * deviation / math.sqrt(runs)


def save(folder: Path, name: str, figures: Figures) -> Path:
    """Keep the figures of one benchmark in place of older ones. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    when = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    stamped = {"layout": _LAYOUT, "measured": when} | figures
    path.write_text(json.dumps(stamped, indent=1) + "\n")
    return path


def load(folder: Path) -> dict[str, Figures]:
    """Load the figures of a folder, by benchmark. Raises ConfigError for a file that is none."""
    found: dict[str, Figures] = {}
    for name in BENCHMARKS:
        path = folder / f"{name}.json"
        if path.exists():
            found[name] = _read(path)
    return found


def _read(path: Path) -> Figures:
    try:
        figures = json.loads(path.read_text())
    except (OSError, ValueError) as bad:
        raise ConfigError(f"{path} is not a benchmark's result: {bad}; delete it") from None
    if not isinstance(figures, dict) or figures.get("layout") != _LAYOUT:
        raise ConfigError(f"{path} is not a result of this version's benchmarks; delete it")
    return figures


@dataclass(frozen=True)
class Part:
    """What one process measured. seconds: how long it took, for a benchmark with a budget."""

    module: str
    arguments: tuple[str, ...]
    seconds: float
    figures: Figures


class Parts:
    """The parts of one benchmark. `tell` hears what becomes of those that were measured before.

    Nothing is written before the first part is done: a command with a wrong option that is stopped
    at once loses nothing.
    """

    def __init__(
        self, path: Path, options: Figures, tell: Callable[[str], None], *, fresh: bool = False
    ) -> None:
        self._path = path
        self._of = _belonging(options)
        self._tell = tell
        self._before: list[Part] = []
        self._end = 0  # of the whole lines; what follows was being written when a kill came
        self._failed = False
        self.kept = 0
        if not fresh:
            self._look()

    def measure(self, module: str, arguments: Sequence[str], begin: Begin) -> Part:
        """Give a part that was measured before, or measure it now in a process of its own."""
        if (before := self.take(module, arguments)) is not None:
            return before
        start = time.monotonic()
        figures = run_module(module, list(arguments), begin)
        part = Part(module, tuple(arguments), time.monotonic() - start, figures)
        self._keep(part)
        return part

    def take(self, module: str, arguments: Sequence[str]) -> Part | None:
        """Give a part that was measured before, once: some parts are measured several times."""
        for place, part in enumerate(self._before):
            if (part.module, part.arguments) == (module, tuple(arguments)):
                return self._before.pop(place)
        return None

    def clear(self) -> None:
        """Delete the parts, because the benchmark is done. Raises OSError."""
        self._path.unlink(missing_ok=True)

    def _look(self) -> None:
        try:
            if self._path.exists():
                self._resume(self._path.read_bytes())
        except (OSError, ConfigError) as useless:
            self._tell(f"starting over: {self._path}: {useless}")

    def _resume(self, content: bytes) -> None:
        """Take the parts of an earlier run. Raises ConfigError for those of another benchmark."""
        whole = content[: content.rfind(b"\n") + 1]
        header, parts = _parse(whole)
        differs = [name for name, value in self._of.items() if header["of"].get(name) != value]
        if differs:
            raise ConfigError(f"{count(len(parts))} with different {' and '.join(differs)}")
        self._before, self._end, self.kept = parts, len(whole), len(parts)
        if parts:
            known = f"{count(len(parts))} measured before (begun {header['begun']})"
            self._tell(f"resuming with {known}; --fresh starts over")

    def _keep(self, part: Part) -> None:
        """Write down a part. A full disk does not stop the benchmark, and is told once."""
        try:
            self._write(_line(asdict(part)))
        except OSError as failed:
            if not self._failed:
                self._tell(f"parts measured from now on are lost if this is stopped: {failed}")
            self._failed = True
        else:
            self.kept += 1

    def _write(self, line: bytes) -> None:
        if not self._end:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            when = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
            line = _line({"layout": _PARTS_LAYOUT, "begun": when, "of": self._of}) + line
        with self._path.open("r+b" if self._end else "wb") as file:
            if file.seek(0, os.SEEK_END) < self._end:
                raise OSError("another run writes to the same folder")
            file.seek(self._end)
            file.truncate()
            file.write(line)
        self._end += len(line)


def count(parts: int) -> str:
    return f"{parts} part{'' if parts == 1 else 's'}"


def _belonging(options: Figures) -> Figures:
    """What must be the same for all parts of one benchmark, as JSON gives it back."""
    here = machine.describe(threads=1)
    stable = {name: value for name, value in here.items() if name not in _OF_THE_MOMENT}
    of: Figures = json.loads(json.dumps({"code": _code(), "machine": stable, "options": options}))
    return of


def _code() -> str:
    """The digest of all code: parts measured by different code are of different benchmarks."""
    files = sorted(
        (str(path.relative_to(package.parent)), path)
        for package in _PACKAGES
        for path in package.rglob("*.py")
    )
    fields = (field for name, path in files for field in (name.encode(), path.read_bytes()))
    return hashlib.sha256(pack(*fields)).hexdigest()


def _parse(whole: bytes) -> tuple[Figures, list[Part]]:
    """Parse the header and the parts. Raises ConfigError."""
    try:
        header, *lines = map(json.loads, whole.splitlines())
        if header["layout"] != _PARTS_LAYOUT:
            raise ValueError("another layout")
        return {"begun": str(header["begun"]), "of": dict(header["of"])}, [*map(_part, lines)]
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError):
        raise ConfigError("these are not parts of this version's benchmarks") from None


def _part(line: Figures) -> Part:
    module, arguments = str(line["module"]), tuple(line["arguments"])
    return Part(module, arguments, float(line["seconds"]), dict(line["figures"]))


def _line(value: Figures) -> bytes:
    return json.dumps(value).encode() + b"\n"

"""Finished parts of a long benchmark, in a file: whoever stops it can go on from there.

The first line says what the parts belong to, and each of the others is a part, in the order in
which they were measured:

    {"layout": ..., "begun": ..., "of": {"code": ..., "machine": ..., "options": ...}}
    {"module": ..., "arguments": [...], "seconds": ..., "figures": {...}}
"""

import hashlib
import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from ostraka.encoding import pack
from ostraka.errors import ConfigError
from ostraka_lab.bench import machine
from ostraka_lab.bench.process import Begin, Figures, run_module

_LAYOUT = 1
_PACKAGE = Path(__file__).parents[1]
_OF_THE_MOMENT = ("available_gib", "load")


@dataclass(frozen=True)
class Part:
    """What one process measured. seconds: that it took, for whoever has a budget."""

    module: str
    arguments: tuple[str, ...]
    seconds: float
    figures: Figures


class Parts:
    """The parts of one benchmark. `tell` hears what becomes of those that were measured before.

    Nothing is written before the first part is done: whoever mistypes an option and stops at once
    loses nothing.
    """

    def __init__(
        self, path: Path, options: Figures, tell: Callable[[str], None], *, fresh: bool = False
    ) -> None:
        self._path = path
        self._of = _belonging(options)
        self._tell = tell
        self._before: list[Part] = []
        self._end = 0  # of the lines that count; the rest was being written when a kill came
        self._failed = False
        self.kept = 0
        if not fresh:
            self._look()

    def measure(self, module: str, arguments: Sequence[str], begin: Begin) -> Part:
        """A part that was measured before, or else a process that measures it now."""
        if (before := self.take(module, arguments)) is not None:
            return before
        start = time.monotonic()
        figures = run_module(module, list(arguments), begin)
        part = Part(module, tuple(arguments), time.monotonic() - start, figures)
        self._keep(part)
        return part

    def take(self, module: str, arguments: Sequence[str]) -> Part | None:
        """A part that was measured before. Each is given once: some are measured several times."""
        for place, part in enumerate(self._before):
            if (part.module, part.arguments) == (module, tuple(arguments)):
                return self._before.pop(place)
        return None

    def clear(self) -> None:
        """The benchmark is done. Raises OSError."""
        self._path.unlink(missing_ok=True)

    def _look(self) -> None:
        try:
            if self._path.exists():
                self._go_on(self._path.read_bytes())
        except (OSError, ConfigError) as useless:
            self._tell(f"beginning anew: {self._path}: {useless}")

    def _go_on(self, content: bytes) -> None:
        """Raises ConfigError for parts of something else."""
        whole = content[: content.rfind(b"\n") + 1]
        header, parts = _parse(whole)
        differs = [name for name, value in self._of.items() if header["of"].get(name) != value]
        if differs:
            raise ConfigError(f"{count(len(parts))} with other {' and '.join(differs)}")
        self._before, self._end, self.kept = parts, len(whole), len(parts)
        if parts:
            known = f"{count(len(parts))} measured before (begun {header['begun']})"
            self._tell(f"going on with {known}; --fresh begins anew")

    def _keep(self, part: Part) -> None:
        """A full disk is no reason to stop, and is told once."""
        try:
            self._write(_line(asdict(part)))
        except OSError as failed:
            if not self._failed:
                self._tell(f"what is measured now is lost if this is stopped: {failed}")
            self._failed = True
        else:
            self.kept += 1

    def _write(self, line: bytes) -> None:
        if not self._end:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            when = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
            line = _line({"layout": _LAYOUT, "begun": when, "of": self._of}) + line
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
    """What must be the same for parts to be of one benchmark, as JSON gives it back."""
    here = machine.describe(threads=1)
    stable = {name: value for name, value in here.items() if name not in _OF_THE_MOMENT}
    of: Figures = json.loads(json.dumps({"code": _code(), "machine": stable, "options": options}))
    return of


def _code() -> str:
    """Of all our files: whoever changes a measurement between two parts has two benchmarks."""
    files = sorted((str(path.relative_to(_PACKAGE)), path) for path in _PACKAGE.rglob("*.py"))
    fields = (field for name, path in files for field in (name.encode(), path.read_bytes()))
    return hashlib.sha256(pack(*fields)).hexdigest()


def _parse(whole: bytes) -> tuple[Figures, list[Part]]:
    """The header and the parts. Raises ConfigError."""
    try:
        header, *lines = map(json.loads, whole.splitlines())
        if header["layout"] != _LAYOUT:
            raise ValueError("another layout")
        return {"begun": str(header["begun"]), "of": dict(header["of"])}, [*map(_part, lines)]
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError):
        raise ConfigError("no parts of this version's benchmarks") from None


def _part(line: Figures) -> Part:
    module, arguments = str(line["module"]), tuple(line["arguments"])
    return Part(module, arguments, float(line["seconds"]), dict(line["figures"]))


def _line(value: Figures) -> bytes:
    return json.dumps(value).encode() + b"\n"

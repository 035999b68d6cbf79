"""Structured logs on stderr: lines for people, or one JSON object a line for programs.

A service logs events, which are frozen dataclasses of plain values. Any other value is shown by the
name of its type alone, so that a key or an array that strays into an event is not printed. What
is not printable is escaped, so that nothing that a peer sent can begin a line of its own.
"""

import dataclasses
import logging
import sys
from datetime import UTC, datetime
from json import dumps
from typing import Any, TextIO

from ostraka.errors import printable

_FIELDS, _SAID = "ostraka_fields", "ostraka_said"
_OURS = "ostraka"
_UNQUOTED = frozenset("-_.:/+@%")


def setup(
    json: bool,
    level: int | str = logging.INFO,
    *,
    simulated: bool = False,
    stream: TextIO | None = None,
) -> None:
    """Logs to stderr from now on. level: of our own loggers; others log warnings.

    simulated: the enclave's evidence proves nothing, and every line says so.
    """
    handler = _Handler(stream)
    handler.setFormatter(_Json(simulated) if json else _Text(simulated))
    root = logging.getLogger()
    for old in [each for each in root.handlers if isinstance(each, _Handler)]:
        root.removeHandler(old)
    root.addHandler(handler)
    logging.getLogger(_OURS).setLevel(level)
    # No line shows them, and to find them out costs as much as to write the line.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False


def event(
    logger: logging.Logger,
    event: Any,
    level: int = logging.INFO,
    *,
    error: BaseException | None = None,
) -> None:
    """Logs a frozen dataclass as its name and its fields. Those with `repr=False` are left out.

    A line for people ends with the event's own words, if it has any (`__str__`).
    error: an unforeseen error, whose trace is shown.
    """
    shown = [field.name for field in dataclasses.fields(event) if field.repr]
    fields = {name: _plain(getattr(event, name)) for name in shown}
    said = str(event) if "__str__" in vars(type(event)) else ""
    extra = {_FIELDS: fields, _SAID: said}
    if logger.isEnabledFor(level):
        # `Logger.log` would search the stack for a line of code that no entry shows.
        trace = (type(error), error, error.__traceback__) if error is not None else None
        name = type(event).__name__
        logger.handle(logger.makeRecord(logger.name, level, "", 0, name, (), trace, extra=extra))


class _Handler(logging.Handler):
    """Writes to this stream, or to what is stderr at that moment."""

    def __init__(self, stream: TextIO | None) -> None:
        super().__init__()
        self._stream = stream

    def emit(self, record: logging.LogRecord) -> None:
        try:
            stream = self._stream or sys.stderr
            stream.write(f"{self.format(record)}\n")
            stream.flush()
        except (OSError, ValueError):
            self.handleError(record)


class _Formatter(logging.Formatter):
    def __init__(self, simulated: bool) -> None:
        super().__init__()
        self._marks = {"simulated": True} if simulated else {}

    def _fields(self, record: logging.LogRecord) -> dict[str, Any]:
        """Returns the fields. The mark comes last, so that no event can overwrite it."""
        return getattr(record, _FIELDS, {}) | self._marks

    def _trace(self, record: logging.LogRecord) -> str:
        return self.formatException(record.exc_info) if record.exc_info else ""


class _Json(_Formatter):
    def format(self, record: logging.LogRecord) -> str:
        trace = self._trace(record)
        return dumps(
            self._fields(record)
            | {
                "time": _time(record),
                "level": record.levelname.lower(),
                "logger": record.name,
                "event": record.getMessage(),
            }
            | ({"trace": trace} if trace else {})
        )


class _Text(_Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = (f"{name}={_shown(value)}" for name, value in self._fields(record).items())
        head = (
            _time(record),
            record.levelname.lower(),
            record.name,
            printable(record.getMessage()),
        )
        # It is indented, so that no line of it looks like an entry of its own.
        trace = [f"    {printable(line)}" for line in self._trace(record).splitlines()]
        said = getattr(record, _SAID, "")
        words = [f"({printable(said)})"] if said else []
        return "\n".join([" ".join([*head, *fields, *words]), *trace])


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, tuple | list | set | frozenset):
        return [_plain(each) for each in value]
    return f"<{type(value).__name__}>"


def _shown(value: Any) -> str:
    """Shows a value bare if that is clear, and quoted otherwise."""
    if isinstance(value, str) and value and all(c.isalnum() or c in _UNQUOTED for c in value):
        return printable(value)
    return dumps(value)

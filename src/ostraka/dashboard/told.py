"""What a service tells of itself. It is not proved, so it is checked for its form alone."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from ostraka.errors import MalformedMessage
from ostraka.events import named

_LONGEST = 100_000  # of anything that is listed
_MOST = 1e15  # of anything that is counted or measured: charts and dates can be made of it

Metrics: TypeAlias = dict[int, dict[str, float]]
"""Figures that clients reported, by round: such as the accuracy, the loss, and the examples."""


@dataclass(frozen=True)
class Work:
    """How often a worker was asked, and what came of that."""

    attempts: int = 0
    lies: int = 0
    failures: int = 0

    def __add__(self, other: "Work") -> "Work":
        return Work(
            self.attempts + other.attempts,
            self.lies + other.lies,
            self.failures + other.failures,
        )


@dataclass(frozen=True)
class Told:
    """A status, as an observer is shown it. `enclave/status.py` says what each field is."""

    federation: str
    revision: int
    phase: str
    round: int
    rounds: int
    published: int
    quorum: int
    quorum_reached: bool
    grace_s: float | None
    deadline_in_s: float | None
    arrived: tuple[str, ...]
    awaited: tuple[str, ...]
    confirmed: tuple[str, ...]
    confirmations_missing: int | None
    rejected: dict[str, str]
    workers: tuple[str, ...]
    shards_missing: tuple[int, ...]
    work: dict[str, Work]
    times: dict[int, dict[str, float]]  # seconds of each stage, by round
    metrics: Metrics
    simulated: bool
    memory_mib: int
    bytes_in: int
    bytes_out: int
    started_at: float

    @classmethod
    def read(cls, text: str) -> "Told":
        """Raises MalformedMessage."""
        try:
            return _told(json.loads(text))
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as unfit:
            raise MalformedMessage(
                f"the service's status is none that this release knows ({unfit!r}): do both sides "
                "run the same version of Ostraka?"
            ) from None


def doing(
    phase: str,
    awaited: Sequence[str] | int,
    *,
    quorate: bool,
    left_s: float | None,
    shards: Sequence[int] = (),
) -> str:
    """Say what a service waits for. awaited: by name, or how many. left_s: None to leave it out.

    shards: those that are missing, without which no round opens.
    """
    who = named(awaited)
    if shards and phase == "starting":
        return f"waiting for shard{'s' * (len(shards) > 1)} {', '.join(map(str, shards))}"
    if phase == "collecting" and quorate:
        more = "" if left_s is None else f" {left_s:.0f} s more"
        return f"quorum reached, waiting{more} for {who}"
    if phase == "collecting":
        return f"waiting for {who}"
    return f"waiting for {who} to confirm" if phase == "confirming" else phase


def _told(said: Mapping[str, Any]) -> Told:
    if isinstance(said["awaited"], int):
        raise MalformedMessage(
            "the service shows numbers, and no names: it does not take this key for an observer's"
        )
    return Told(
        federation=_text(said["federation"]),
        revision=_count(said["revision"]),
        phase=_text(said["phase"]),
        round=_count(said["round"]),
        rounds=_count(said["rounds"]),
        published=_count(said["published"]),
        quorum=_count(said["quorum"]),
        quorum_reached=bool(said["quorum_reached"]),
        grace_s=_maybe(said["grace_s"]),
        deadline_in_s=_maybe(said["deadline_in_s"]),
        arrived=_names(said["arrived"]),
        awaited=_names(said["awaited"]),
        confirmed=_names(said["confirmed"]),
        confirmations_missing=None
        if said["confirmations_missing"] is None
        else _count(said["confirmations_missing"]),
        rejected={_text(who): _text(why) for who, why in said["rejected"].items()},
        workers=_names(said["workers"]),
        shards_missing=tuple(map(_count, said.get("shards_missing", ()))),
        work={
            _text(who): Work(*(_count(each[name]) for name in ("attempts", "lies", "failures")))
            for who, each in said["worker_record"].items()
        },
        times={
            _count(each["round"]): {
                _text(stage): _number(spent) for stage, spent in each["stages_s"].items()
            }
            for each in said["history"]
        },
        metrics=_metrics(said.get("metrics")),
        simulated=bool(said["simulated"]),
        memory_mib=_count(said["memory_mib"]),
        bytes_in=_count(said["bytes_in"]),
        bytes_out=_count(said["bytes_out"]),
        started_at=_number(said["started_at"]),
    )


def _metrics(said: Any) -> Metrics:
    """By round. They are there only where the terms ask clients for metrics."""
    return {
        _count(each["round"]): {
            _text(name): _number(value) for name, value in each.items() if name != "round"
        }
        for each in said or ()
    }


def _names(said: Any) -> tuple[str, ...]:
    if not isinstance(said, list) or len(said) > _LONGEST:
        raise TypeError(f"{type(said).__name__} in the place of names")
    return tuple(map(_text, said))


def _text(said: Any) -> str:
    if not isinstance(said, str):
        raise TypeError(f"{type(said).__name__} in the place of text")
    said.encode()  # Half a character could not be sent on. Raises ValueError.
    return said


def _count(said: Any) -> int:
    if not isinstance(said, int) or not 0 <= said <= _MOST:
        raise TypeError(f"{said!r:.40} in the place of a count")
    return said


def _number(said: Any) -> float:
    if not isinstance(said, int | float) or not 0 <= said <= _MOST:  # a NaN fails it
        raise TypeError(f"{said!r:.40} in the place of a number")
    return float(said)


def _maybe(said: Any) -> float | None:
    return None if said is None else _number(said)

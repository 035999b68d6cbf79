"""The status and the metrics that an operator may see: no update, no distance, no score."""

import json
import time
from collections import Counter as Count
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge

from ostraka import events
from ostraka.enclave.engine import Engine
from ostraka.events import Event
from ostraka.messages import Receipt

_MOST_STRANGERS = 100  # names that are shown although they are on no roster


def _disclosed(head: object) -> list[str] | None:
    return list(head.selected) if isinstance(head, Receipt) and head.disclosed else None


@dataclass
class Status:
    """Notes events, and reads the engine when the status is asked for."""

    simulated: bool
    evidence: str
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    engine: Engine | None = None
    arrived: set[str] = field(default_factory=set)  # in this round or the last one
    rejected: dict[str, str] = field(default_factory=dict)  # the same
    counts: Count[str] = field(default_factory=Count)
    started: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self._events = Counter(
            "ostraka_events", "Events, by name", ["event"], registry=self.registry
        )
        for kind in get_args(Event):
            self._events.labels(kind.__name__)  # At zero: the first event is a change.
        self._gauge("ostraka_simulated", "1 if no TEE protects the enclave", lambda: self.simulated)
        self._gauge(
            "ostraka_rounds_published", "Rounds published", lambda: self._engine().published
        )
        self._gauge(
            "ostraka_clients_arrived", "Updates complete in the round", lambda: len(self.arrived)
        )
        self._gauge("ostraka_clients_enrolled", "Clients enrolled", self._enrolled)
        self._gauge("ostraka_workers_connected", "Workers connected", lambda: len(self._pool()))
        self._gauge("ostraka_received_bytes", "Bytes of the open round's updates", self._received)
        self._stages = Gauge(
            "ostraka_stage_seconds", "Time per stage, last round", ["stage"], registry=self.registry
        )

    def note(self, event: Event) -> None:
        """Count an event, and remember what the status shows."""
        name = type(event).__name__
        self.counts[name] += 1
        self._events.labels(name).inc()
        match event:
            case events.RoundOpened():
                self.arrived.clear()
                self.rejected.clear()
            case events.UploadCompleted(client):
                self.arrived.add(client)
                self.rejected.pop(client, None)  # It was refused before, and has corrected that.
            case events.ClientRejected(client, reason):
                self.rejected[client] = str(reason)
            case events.UploadRefused(client, why) if self._has_room_for(client):
                self.rejected[client] = str(why)
            case events.RoundPublished():
                for stage, seconds in self._engine().stages.items():
                    self._stages.labels(stage).set(seconds)

    def as_json(self) -> str:
        return json.dumps(self.as_dict())

    def as_dict(self) -> dict[str, Any]:
        engine = self._engine()
        current, head = engine.current, engine.state.head
        return {
            "federation": engine.file.about.name,
            "revision": engine.federation.revision,
            "phase": str(engine.phase),
            "round": current.number if current else engine.published + 1,
            "rounds": engine.file.rounds.count,
            "published": engine.published,
            "deadline_in_s": round(max(0.0, engine.deadline - time.monotonic()), 1)
            if current
            else None,
            "arrived": sorted(self.arrived),
            "awaited": sorted(current.awaited) if current else [],
            "rejected": dict(self.rejected),
            "workers": sorted(self._pool()),
            "stages_s": dict(engine.stages),
            "selected": _disclosed(head),
            "masking": engine.federation.terms.masking,
            "evidence": self.evidence,
            "receipt_key": engine.enclave.receipt_key.hex(),
            "simulated": self.simulated,
            "events": dict(self.counts),
            "uptime_s": round(time.monotonic() - self.started, 1),
        }

    def _engine(self) -> Engine:
        if self.engine is None:
            raise AssertionError("the status is asked for after the engine is there")
        return self.engine

    def _has_room_for(self, name: str) -> bool:
        """Strangers can claim any number of names, and must not crowd out the enrolled."""
        enrolled = {member.name for member in self._engine().federation.clients}
        return name in enrolled or len(self.rejected.keys() - enrolled) < _MOST_STRANGERS

    def _pool(self) -> dict[str, Any]:
        return dict(self._engine().pool.connected)

    def _enrolled(self) -> int:
        return len(self._engine().federation.clients)

    def _received(self) -> int:
        current = self._engine().current
        return current.bytes_in if current else 0

    def _gauge(self, name: str, what: str, read: Callable[[], float]) -> None:
        Gauge(name, what, registry=self.registry).set_function(
            lambda: float(read()) if self.engine is not None else 0.0
        )

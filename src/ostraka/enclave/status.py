"""The status and the metrics: no update, no distance, no score; and to strangers no name.

The operator shows a token that is in the state folder, which only the service's user can read.
"""

import hmac
import json
import resource
import secrets
import time
from collections import Counter as Count
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge

from ostraka import events, files
from ostraka.core.metrics import Reported
from ostraka.enclave.engine import Engine
from ostraka.events import Event
from ostraka.messages import Abandon, Receipt

TOKEN_FILE = "status.token"  # in the state folder # noqa: S105

_TOKEN_BYTES = 32
_RECENT = 50  # rounds of which the status shows what clients have reported
_MOST_STRANGERS = 100  # names that are shown although they are on no roster
_HISTORY = 100  # rounds whose times are shown
_KIB_OF_MIB = 2**10


# Fields that name parties, and one that is long.
_NAMED = (
    *("arrived", "awaited", "confirmed", "spooled", "rejected", "selected"),
    *("workers", "worker_record", "history"),
)


def _number(parties: Any) -> int | None:
    return None if parties is None else len(parties)


def _disclosed(head: object) -> list[str] | None:
    return list(head.selected) if isinstance(head, Receipt) and head.disclosed else None


def _note(head: object) -> str:
    """What the last receipt says of how its rule worked."""
    return head.note if isinstance(head, Receipt) else ""


def _awaited(engine: Engine) -> frozenset[str]:
    """Whose updates may still come, or whose confirmations."""
    if engine.current is not None:
        return engine.current.awaited
    return engine.ballot.awaited if engine.ballot is not None else frozenset()


@dataclass
class WorkerRecord:
    """How often a worker was asked, since the service started, and what came of that."""

    attempts: int = 0
    lies: int = 0
    failures: int = 0


@dataclass
class Status:
    """Notes events, and reads the engine when the status is asked for."""

    simulated: bool
    evidence: str
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    engine: Engine | None = None
    arrived: set[str] = field(default_factory=set)  # in this round or the last one
    rejected: dict[str, str] = field(default_factory=dict)  # the same
    stages: dict[str, float] = field(default_factory=dict)  # seconds, of the last round
    history: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=_HISTORY))
    worker_record: dict[str, WorkerRecord] = field(default_factory=dict)
    recent: tuple[Receipt | Abandon | None, list[dict[str, float]]] | None = None  # as of a receipt
    traffic: Callable[[], tuple[int, int]] = lambda: (0, 0)  # bytes in and out, without lanes
    uploaded: int = 0  # bytes by lanes, of the rounds before this one
    counts: Count[str] = field(default_factory=Count)
    started: float = field(default_factory=time.monotonic)
    started_at: float = field(default_factory=time.time)
    token: str = field(default_factory=lambda: secrets.token_hex(_TOKEN_BYTES), repr=False)

    def __post_init__(self) -> None:
        self._events = Counter(
            "ostraka_events", "Events, by name", ["event"], registry=self.registry
        )
        names = [kind.__name__ for kind in get_args(Event)]
        # At zero: the first event is a change.
        self._counted = {name: self._events.labels(name) for name in names}
        self._gauge("ostraka_simulated", "1 if no TEE protects the enclave", lambda: self.simulated)
        self._gauge(
            "ostraka_rounds_published", "Rounds published", lambda: self._engine().published
        )
        self._gauge(
            "ostraka_clients_arrived", "Updates complete in the round", lambda: len(self.arrived)
        )
        self._gauge("ostraka_clients_enrolled", "Clients enrolled", self._enrolled)
        self._gauge("ostraka_workers_connected", "Workers connected", lambda: len(self._pool()))
        self._gauge("ostraka_shards_connected", "Shards connected", lambda: self._shards()[0])
        self._gauge(
            "ostraka_shards_missing", "Shards that a round waits for", lambda: self._shards()[1]
        )
        self._gauge("ostraka_received_bytes", "Bytes of the open round's updates", self._received)
        self._rule = Gauge(
            "ostraka_rule_info",
            "1 for the rule in force, and what the last receipt notes of it",
            ["rule", "note"],
            registry=self.registry,
        )
        self._stages = Gauge(
            "ostraka_stage_seconds", "Time per stage, last round", ["stage"], registry=self.registry
        )

        self._reported = Gauge(
            "ostraka_reported_metric",
            "The mean of what clients report, last round; absent if it published none",
            ["metric"],
            registry=self.registry,
        )
        self._gauge("ostraka_reporting_clients", "Clients in those means", self._reporting)

    def note(self, event: Event) -> None:
        """Count an event, and remember what the status shows."""
        name = type(event).__name__
        self.counts[name] += 1
        self._counted[name].inc()
        match event:
            case events.RoundOpened():
                self.arrived.clear()
                self.rejected.clear()
                self._show_rule()
                self._show_metrics()
            case events.UploadCompleted(client):
                self.arrived.add(client)
                self.rejected.pop(client, None)  # It was refused before, and has corrected that.
            case events.ClientRejected(client, reason):
                self.rejected[client] = str(reason)
            case events.UploadRefused(client, why, address) if self._is_shown(client, address):
                self.rejected[client] = str(why)
            case events.AttemptStarted(_, workers):
                for worker in workers:
                    self._worker(worker).attempts += 1
            case events.WorkerLied(worker):
                self._worker(worker).lies += 1
            case events.WorkerFailed(worker):
                self._worker(worker).failures += 1
            case events.RoundClosed() | events.RoundSkipped():
                self.uploaded += self._received()
            case events.RoundPublished(number):
                self._show_rule()
                self._show_metrics()
                self.stages = dict(self._engine().stages)
                self.history.append({"round": number, "stages_s": self.stages})
                for stage, seconds in self.stages.items():
                    self._stages.labels(stage).set(seconds)

    def keep_token(self, folder: Path) -> None:
        """Write the token where the operator finds it. It is another one after each start."""
        files.write(folder / TOKEN_FILE, [self.token.encode()])

    def is_operator(self, token: str) -> bool:
        return hmac.compare_digest(token.encode(), self.token.encode())

    def as_json(self, *, names: bool) -> str:
        """names: show who is who. Otherwise lists of parties are numbers."""
        shown = self.as_dict()
        if not names:
            shown |= {each: _number(shown[each]) for each in _NAMED}
            shown["rule"] = self._engine().federation.terms.composition.plain
        return json.dumps(shown)

    def as_dict(self) -> dict[str, Any]:
        engine = self._engine()
        current, head, ballot = engine.current, engine.state.head, engine.ballot
        bytes_in, bytes_out = self.traffic()
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
            "quorum": engine.file.quorum,
            "quorum_reached": current.quorate if current else None,
            "grace_s": engine.file.rounds.grace_s,
            "arrived": sorted(self.arrived),
            "awaited": sorted(_awaited(engine)),
            "confirmed": sorted(ballot.votes) if ballot else [],
            "confirmations_missing": ballot.missing if ballot else None,
            "spooled": sorted(current.intake.spooled) if current else [],
            "rejected": dict(self.rejected),
            "workers": sorted(self._pool()),
            "shards": sorted(engine.shards.connected) if engine.shards is not None else [],
            "shards_missing": list(engine.shards.missing) if engine.shards is not None else [],
            "worker_record": {name: vars(each) for name, each in self.worker_record.items()},
            "history": list(self.history),
            "stages_s": self.stages,
            "selected": _disclosed(head),
            "rule": str(engine.federation.terms.composition),
            "note": _note(head) or None,
            "metrics": self._recent_metrics(),
            "masking": engine.federation.terms.masking,
            "upload": engine.federation.terms.upload,
            "evidence": self.evidence,
            "receipt_key": engine.enclave.receipt_key.hex(),
            "simulated": self.simulated,
            "events": dict(self.counts),
            "memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // _KIB_OF_MIB,
            "bytes_in": bytes_in + self.uploaded + self._received(),
            "bytes_out": bytes_out,
            "started_at": round(self.started_at, 3),
            "uptime_s": round(time.monotonic() - self.started, 1),
        }

    def _engine(self) -> Engine:
        if self.engine is None:
            raise AssertionError("the status is asked for after the engine is there")
        return self.engine

    def _show_rule(self) -> None:
        engine = self._engine()
        self._rule.clear()
        rule = engine.federation.terms.composition.plain  # Options may name a client.
        self._rule.labels(rule, _note(engine.state.head)).set(1)

    def _show_metrics(self) -> None:
        self._reported.clear()  # Else an older round's would pass for the last one's.
        last = self._last_metrics()
        for name, value in last.means.items() if last is not None else ():
            self._reported.labels(name).set(value)

    def _recent_metrics(self) -> list[dict[str, float]]:
        """Made once a round: strangers may ask as often as they like."""
        engine = self._engine()
        head = engine.state.head
        if self.recent is None or self.recent[0] is not head:
            figures = [
                each.receipt.metrics.figures(each.receipt.number)
                for each in engine.state.published(engine.published - _RECENT + 1)
                if each.receipt.metrics is not None
            ]
            self.recent = head, figures
        return self.recent[1]

    def _last_metrics(self) -> Reported | None:
        head = self._engine().state.head
        return head.metrics if isinstance(head, Receipt) else None

    def _reporting(self) -> int:
        last = self._last_metrics()
        return 0 if last is None else last.clients

    def _is_shown(self, name: str, address: str) -> bool:
        """Strangers can claim any number of names, and must not crowd out the enrolled.

        What an address sends in the name of an enrolled client says nothing about that client.
        """
        enrolled = {member.name for member in self._engine().federation.clients}
        if name in enrolled:
            return not address
        return len(self.rejected.keys() - enrolled) < _MOST_STRANGERS

    def _worker(self, name: str) -> WorkerRecord:
        return self.worker_record.setdefault(name, WorkerRecord())

    def _pool(self) -> dict[str, Any]:
        return dict(self._engine().pool.connected)

    def _shards(self) -> tuple[int, int]:
        """How many are here, and how many are not."""
        shards = self._engine().shards
        return (0, 0) if shards is None else (len(shards.connected), len(shards.missing))

    def _enrolled(self) -> int:
        return len(self._engine().federation.clients)

    def _received(self) -> int:
        current = self._engine().current
        return current.intake.bytes_in if current else 0

    def _gauge(self, name: str, what: str, read: Callable[[], float]) -> None:
        Gauge(name, what, registry=self.registry).set_function(
            lambda: float(read()) if self.engine is not None else 0.0
        )

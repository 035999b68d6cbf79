"""What one of the clients writes down for the demo to look at: models and receipts.

Every client gets to see these, and has checked them. The recorder is an honest one.
"""

import logging
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ostraka.arrays import Float32
from ostraka.demo import task
from ostraka.demo.children import Logged
from ostraka.demo.review import Published
from ostraka.demo.settings import Demo
from ostraka.errors import Rejection
from ostraka.messages import SIMULATION, Receipt
from ostraka.services import logs


@dataclass(frozen=True)
class ModelRecorded:
    """The model after so many rounds is in its file."""

    rounds: int


@dataclass(frozen=True)
class RoundRecorded:
    """What a round's receipt says. reasons: one for each client that was rejected."""

    number: int
    participants: int
    selected: tuple[str, ...]
    rejected: tuple[str, ...]
    reasons: tuple[str, ...]
    masking: str
    distances: str
    evidence: str
    model: str


def recorder(demo: Demo) -> int:
    return task.honest(demo)[0]


def client_name(number: int) -> str:
    return f"client-{number}"


@dataclass(frozen=True)
class Recorder:
    """The writing side, in the client's process."""

    root: Path
    log: logging.Logger

    def model(self, rounds: int, vector: Float32) -> None:
        path = _model_path(self.root, rounds)
        path.parent.mkdir(exist_ok=True)
        np.save(path, vector)
        logs.event(self.log, ModelRecorded(rounds))

    def receipt(self, receipt: Receipt) -> None:
        recorded = RoundRecorded(
            number=receipt.number,
            participants=receipt.participants,
            selected=receipt.selected,
            rejected=tuple(each.client for each in receipt.rejected),
            reasons=tuple(each.reason for each in receipt.rejected),
            masking=receipt.masking,
            distances=receipt.distances,
            evidence=receipt.evidence,
            model=receipt.model.hex(),
        )
        logs.event(self.log, recorded)


@dataclass
class Books:
    """The reading side, in the demo's process."""

    root: Path
    _models: set[int] = field(default_factory=set)
    _rounds: dict[int, Logged] = field(default_factory=dict)

    def note(self, event: Logged) -> None:
        match event.get("event"):
            case "ModelRecorded":
                self._models.add(event["rounds"])
            case "RoundRecorded":
                self._rounds[event["number"]] = event

    def has(self, number: int) -> bool:
        """Whether a round is written down, and the models before and after it."""
        return number in self._rounds and {number - 1, number} <= self._models

    def published(self, number: int, workers: tuple[str, ...]) -> Published:
        """workers: who measured this round, as its enclave says."""
        recorded = self._rounds[number]
        reasons = zip(recorded["rejected"], recorded["reasons"], strict=True)
        return Published(
            number=number,
            before=np.load(_model_path(self.root, number - 1)),
            after=np.load(_model_path(self.root, number)),
            selected=tuple(sorted(map(_number, recorded["selected"]))),
            rejected={_number(name): Rejection(reason) for name, reason in reasons},
            workers=workers,
            simulated=recorded["evidence"] == SIMULATION,
        )


def _model_path(root: Path, rounds: int) -> Path:
    return root / "models" / f"after-round-{rounds}.npy"


def _number(name: str) -> int:
    return int(name.removeprefix("client-"))

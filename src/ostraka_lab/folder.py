"""The folder of one run: what was asked for, what came of it, and what resuming it needs."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ostraka import files
from ostraka.arrays import Buffer, Float32
from ostraka.client.results import Model
from ostraka.errors import ConfigError
from ostraka.messages import SIMULATION, Receipt
from ostraka_lab.experiment import Experiment
from ostraka_lab.participant import Participant

_PUBLIC = 0o644


@dataclass(frozen=True)
class RunFolder:
    """Names in a run's folder."""

    root: Path

    @property
    def experiment_file(self) -> Path:
        return self.root / "experiment.json"

    @property
    def federation(self) -> Path:
        return self.root / "federation"

    @property
    def first_model(self) -> Path:
        return self.root / "first.safetensors"

    @property
    def model(self) -> Path:
        return self.root / "model.safetensors"

    @property
    def rounds(self) -> Path:
        return self.root / "rounds"

    @property
    def board(self) -> Path:
        return self.root / "board"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    def make(self) -> None:
        """Raises ConfigError if there is something else in it."""
        if self.root.exists() and (not self.root.is_dir() or any(self.root.iterdir())):
            raise ConfigError(
                f"{self.root} is not empty: name a new folder, or go on with the run in it "
                f"(--resume {self.root})"
            )
        try:
            self.root.mkdir(parents=True, exist_ok=True)
        except OSError as failure:
            raise ConfigError(f"{self.root} cannot be made: {failure.strerror}") from None

    def save(self, experiment: Experiment, **facts: Any) -> None:
        """What was asked for, and what follows from it."""
        text = json.dumps(experiment.to_json() | facts, indent=1)
        files.write(self.experiment_file, [text.encode()], mode=_PUBLIC)

    def load(self) -> tuple[Experiment, dict[str, Any]]:
        """The experiment, and all that its file says. Raises ConfigError."""
        try:
            fields = json.loads(self.experiment_file.read_text("utf-8"))
            return Experiment.from_json(fields), fields
        except OSError as unreadable:
            raise ConfigError(
                f"{self.root} holds no run: {self.experiment_file}: {unreadable.strerror}"
            ) from None
        except (ValueError, TypeError, KeyError) as damaged:
            raise ConfigError(f"{self.experiment_file} is damaged: {damaged}") from None


@dataclass(frozen=True)
class MomentumFile:
    """One client's momentum after each of the last two rounds: the newest may be run again."""

    folder: Path
    participant: Participant

    def restore(self, number: int) -> None:
        """To what it was before this round."""
        before = self._path(number - 1)
        if self._used:
            found = np.fromfile(before, "<f4") if before.exists() else None
            self.participant.trainer.momentum_state = found

    def save(self, number: int) -> None:
        """What it is after this round."""
        state = self.participant.trainer.momentum_state
        if self._used and state is not None:
            self.folder.mkdir(exist_ok=True)
            files.write(self._path(number), [np.ascontiguousarray(state, "<f4").data])
            self._path(number - 2).unlink(missing_ok=True)

    @property
    def _used(self) -> bool:
        return self.participant.trainer.recipe.worker_momentum > 0

    def _path(self, number: int) -> Path:
        return self.folder / f"client-{self.participant.number}-round-{number}.f32"


PREFIX = "client-"


def client_name(number: int) -> str:
    return f"{PREFIX}{number}"


def client_number(name: str) -> int:
    return int(name.removeprefix(PREFIX))


@dataclass(frozen=True)
class RoundRecord:
    """What a round's receipt says. Clients are numbers."""

    number: int
    selected: tuple[int, ...]
    rejected: dict[int, str]
    simulated: bool


@dataclass(frozen=True)
class Records:
    """The models and receipts of rounds that are over, in a folder.

    writer: a name of its own, so that nobody writes to another one's half of a file.
    """

    folder: Path
    writer: str = ""

    def write(self, model: Model) -> None:
        """The model that was fetched, and the receipt of the round that made it."""
        receipt = model.receipt
        if receipt is None or self.has(receipt.number):
            return
        self.folder.mkdir(exist_ok=True)
        self._put(self._model(receipt.number), np.ascontiguousarray(model.vector, "<f4").data)
        # Last: whoever sees the receipt can read the model.
        self._put(self._receipt(receipt.number), json.dumps(_described(receipt)).encode())

    def has(self, number: int) -> bool:
        return self._receipt(number).exists()

    def model(self, number: int) -> Float32:
        """After this round (d,)."""
        return np.fromfile(self._model(number), "<f4")

    def round(self, number: int) -> RoundRecord:
        said = json.loads(self._receipt(number).read_text("utf-8"))
        return RoundRecord(
            number=number,
            selected=tuple(sorted(map(client_number, said["selected"]))),
            rejected={client_number(name): why for name, why in said["rejected"].items()},
            simulated=said["evidence"] == SIMULATION,
        )

    def discard_before(self, number: int) -> None:
        """Models of earlier rounds are not needed any more."""
        for path in self.folder.glob("model-*.f32"):
            if int(path.stem.removeprefix("model-")) < number:
                path.unlink(missing_ok=True)

    def _put(self, path: Path, content: Buffer) -> None:
        own = path.with_name(f"{path.name}.{self.writer}")
        own.write_bytes(content)
        own.replace(path)

    def _model(self, number: int) -> Path:
        return self.folder / f"model-{number}.f32"

    def _receipt(self, number: int) -> Path:
        return self.folder / f"receipt-{number}.json"


def _described(receipt: Receipt) -> dict[str, object]:
    return {
        "number": receipt.number,
        "participants": receipt.participants,
        "selected": receipt.selected,
        "rejected": {each.client: str(each.reason) for each in receipt.rejected},
        "masking": receipt.masking,
        "distances": receipt.distances,
        "evidence": receipt.evidence,
        "model": receipt.model.hex(),
    }

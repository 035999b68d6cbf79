"""The folder of one run: what was asked for, what came of it, and what resuming it needs.

experiment.json      the experiment, who attacked, and who held what
metrics.jsonl        one line a round
baseline.jsonl       the same for plain averaging, if that ran along
report.html          all of it as pictures
model.safetensors    the last global model
tensorboard/         the same curves for TensorBoard
federation/          the federation's file, sealed state, keys, and clients' memories and momenta
rounds/              models and receipts that clients have checked, until they are evaluated
board/               what attackers know of others' updates
logs/                what every process logged
"""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ostraka import files
from ostraka.arrays import Buffer, Float32
from ostraka.cli.federation_folder import CLIENT
from ostraka.client.results import Model
from ostraka.errors import ConfigError
from ostraka.messages import SIMULATION, Receipt
from ostraka_lab.experiment import Experiment

_PUBLIC = 0o644
_POLL_S = 0.05
_KEPT = 2  # rounds of leaked updates: one that is opened again may be read again


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
        """Make the folder. Raises ConfigError if it is not empty."""
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
        """Write down what was asked for, and facts that follow from it."""
        text = json.dumps(experiment.to_json() | facts, indent=1)
        files.write(self.experiment_file, [text.encode()], mode=_PUBLIC)

    def load(self) -> tuple[Experiment, dict[str, Any]]:
        """Read the experiment, and all that its file says. Raises ConfigError."""
        try:
            fields = json.loads(self.experiment_file.read_text("utf-8"))
            return Experiment.from_json(fields), fields
        except OSError as unreadable:
            raise ConfigError(
                f"{self.root} holds no run: {self.experiment_file}: {unreadable.strerror}"
            ) from None
        except (ValueError, TypeError, KeyError) as damaged:
            raise ConfigError(f"{self.experiment_file} is damaged: {damaged}") from None


def client_name(number: int) -> str:
    return f"{CLIENT}{number}"


def client_number(name: str) -> int:
    return int(name.removeprefix(CLIENT))


@dataclass(frozen=True)
class RoundRecord:
    """What a round's receipt says. Clients are numbers."""

    number: int
    selected: tuple[int, ...]
    rejected: dict[int, str]
    simulated: bool
    failure: str


@dataclass(frozen=True)
class Records:
    """The models and receipts of rounds that are over, which clients have fetched and checked.

    All clients write the same, and the first is enough. writer: a client's own name, so that no two
    write to the same unfinished file.
    """

    folder: Path
    writer: str = ""

    def write(self, model: Model) -> None:
        """Write down a model that was fetched, and the receipt of the round that made it."""
        receipt = model.receipt
        if receipt is None or self.has(receipt.number):
            return
        self.folder.mkdir(exist_ok=True)
        self._put(self._model(receipt.number), np.ascontiguousarray(model.vector, "<f4").data)
        # The receipt comes last: where it is, the model can be read.
        self._put(self._receipt(receipt.number), json.dumps(_described(receipt)).encode())

    def has(self, number: int) -> bool:
        return self._receipt(number).exists()

    def model(self, number: int) -> Float32:
        """The model (d,) after this round."""
        return np.fromfile(self._model(number), "<f4")

    def round(self, number: int) -> RoundRecord:
        said = json.loads(self._receipt(number).read_text("utf-8"))
        return RoundRecord(
            number=number,
            selected=tuple(sorted(map(client_number, said["selected"]))),
            rejected={client_number(name): why for name, why in said["rejected"].items()},
            simulated=said["evidence"] == SIMULATION,
            failure=said["failure"],
        )

    def discard_before(self, number: int) -> None:
        """Delete the models of earlier rounds."""
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
        "failure": receipt.failure,
        "model": receipt.model.hex(),
    }


@dataclass(frozen=True)
class Board:
    """Where attackers learn of others' updates: those of the last rounds, by client.

    The strongest attacks of the literature know what honest clients send. In a real federation only
    the enclave does. Here the lab tells them, through files, so that clients of all processes can
    read and write there.
    """

    folder: Path

    def tell(self, client: int, number: int, update: Float32) -> None:
        path = self._path(client, number)
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write(path, [np.ascontiguousarray(update, "<f4").data])
        self._path(client, number - _KEPT).unlink(missing_ok=True)

    def leave(self, client: int) -> None:
        """Say that this client sends nothing any more, so that others do not wait for it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._gone(client).touch()

    def forget(self) -> None:
        """Forget who has left: they may come back."""
        for gone in self.folder.glob("*.gone"):
            gone.unlink()

    def read(self, clients: Sequence[int], number: int) -> Float32:
        """Read the updates (m, d) of these clients in this round, once all who remain have told."""
        told = [path for client in clients if (path := self._told(client, number)) is not None]
        if not told:
            return np.empty((0, 0), np.float32)
        # One row at a time into its place: a second copy of all of them may not fit.
        first = np.fromfile(told[0], "<f4")
        rows = np.empty((len(told), first.size), np.float32)
        for row, path in zip(rows, told, strict=True):
            row[:] = np.fromfile(path, "<f4")
        return rows

    def _told(self, client: int, number: int) -> Path | None:
        """Wait for what a client tells. None if it has left and told nothing."""
        path = self._path(client, number)
        while not path.exists():
            if self._gone(client).exists():
                return path if path.exists() else None
            time.sleep(_POLL_S)
        return path

    def _path(self, client: int, number: int) -> Path:
        return self.folder / f"round-{number}" / f"{client}.f32"

    def _gone(self, client: int) -> Path:
        return self.folder / f"{client}.gone"

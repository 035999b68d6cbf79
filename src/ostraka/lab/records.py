"""What clients write down for the lab to look at: models and receipts.

Every client gets to see these, and has checked them. All write the same, and the first is enough.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ostraka.arrays import Buffer, Float32
from ostraka.client.results import Model
from ostraka.messages import SIMULATION, Receipt

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

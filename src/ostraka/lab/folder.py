"""The folder of one run: what was asked for, what came out, and all that is needed to go on.

experiment.json      the experiment, who attacked, and who held what
metrics.jsonl        one line a round
baseline.jsonl       the same for plain averaging, if that ran along
report.html          all of it as pictures
model.safetensors    the last global model
tensorboard/         the same curves for TensorBoard
federation/          the federation's config, keys and sealed state
rounds/              models and receipts that clients have checked, until they are evaluated
board/               what attackers know of others' updates
logs/                what every process said
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ostraka import files
from ostraka.errors import ConfigError
from ostraka.lab.experiment import Experiment

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

"""Worker momentum on disk, so that a run that was interrupted goes on as if it had not been."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ostraka import files
from ostraka.lab.participant import Participant


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

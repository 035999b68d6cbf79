"""What a client tells whoever watches it: why it takes so long."""

from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias


@dataclass(frozen=True)
class Waiting:
    """Nothing is wrong. The other side is not there yet."""

    what: str

    def __str__(self) -> str:
        return f"waiting for {self.what}"


@dataclass(frozen=True)
class Reconnecting:
    """The enclave's service does not answer as it should; it is asked again."""

    attempt: int
    why: str

    def __str__(self) -> str:
        return f"attempt {self.attempt} failed ({self.why}): trying again"


@dataclass(frozen=True)
class Uploading:
    """So many of the update's tiles are on their way. Fewer than all: the rest had arrived."""

    round: int
    tiles: int
    of: int

    def __str__(self) -> str:
        return f"sending {self.tiles} of {self.of} tiles for round {self.round}"


@dataclass(frozen=True)
class Resending:
    """The round was opened again; the same update goes to it under a fresh key."""

    round: int

    def __str__(self) -> str:
        return f"round {self.round} was opened again: sending the update anew"


@dataclass(frozen=True)
class AlreadySent:
    """An earlier update of this client is complete in this round, and that one counts."""

    round: int

    def __str__(self) -> str:
        return f"round {self.round} has an update of this client already: that one counts"


@dataclass(frozen=True)
class ForkProved:
    """The enclave signed two receipts for one round. Both are in this file."""

    proof: Path

    def __str__(self) -> str:
        return f"the chain is forked; both receipts are in {self.proof}"


Event: TypeAlias = Waiting | Reconnecting | Uploading | Resending | AlreadySent | ForkProved

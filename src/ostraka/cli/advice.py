"""Which rule to take: what `ostraka init --advise` asks, and what it answers.

The rows are those of docs/choosing-a-rule.md, which says more. They come from tables that the lab
has made, in docs/results; a test compares the three.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from ostraka.config import MIN_WORKERS
from ostraka.core import rules
from ostraka.core.rules import FALLBACK, Composition, Options
from ostraka.errors import ConfigError

Data: TypeAlias = Literal["alike", "different"]
DATA: tuple[Data, ...] = get_args(Data)


@dataclass(frozen=True)
class Situation:
    """A federation that has no terms yet. Raises ConfigError if no terms could fit it.

    data: whether those of all clients are alike, or each client has more of some kind. root: the
    name of a client that everybody trusts, if there is one. workers: machines beside the enclave's
    that can compute for it, or 0.
    """

    clients: int
    f: int
    data: Data
    root: str
    workers: int

    def __post_init__(self) -> None:
        if self.clients < 1 or self.f < 0:
            raise ConfigError(
                f"there are clients, and 0 or more of them are Byzantine; got {self.clients} "
                f"clients and f = {self.f}"
            )
        if self.clients < (least := FALLBACK.least(self.f)):
            raise ConfigError(
                f"no rule tolerates f = {self.f} of {self.clients} clients: enrol {least} or more"
            )
        if self.workers < 0 or 0 < self.workers < MIN_WORKERS:
            raise ConfigError(
                f"masks take {MIN_WORKERS} workers or more, and without any the enclave computes "
                f"alone (0); got {self.workers}"
            )


@dataclass(frozen=True)
class Row:
    """Which rule to take, and when and why."""

    when: str
    holds: Callable[[Situation], bool]
    rule: str
    why: str


# The first that holds decides.
ROWS = (
    Row(
        "data differ, one client can be trusted, and n ≥ 2f + 3",
        lambda given: given.data == "different" and bool(given.root) and _trusting(given),
        "fltrust",
        "it judges all others by an update that is known to be sound, and had the best worst case",
    ),
    Row(
        "all others",
        lambda _: True,
        "flame",
        "it had the best worst case of all rules that trust nobody",
    ),
)


def _trusting(given: Situation) -> bool:
    """Whether there are enough clients for a rule that trusts one of them."""
    return given.clients >= 2 * given.f + 3


@dataclass(frozen=True)
class Advice:
    """Terms for a situation. reasons: a sentence for each of them."""

    composition: Composition
    masking: str
    reasons: tuple[str, ...]


def advise(given: Situation) -> Advice:
    """The terms to take."""
    row = next(each for each in ROWS if each.holds(given))
    trusting = rules.RULES[row.rule.split("+")[-1]].needs_root
    composition = rules.parse(row.rule, Options(root=given.root) if trusting else None)
    masking = "exact" if given.workers else "none"
    return Advice(composition, masking, tuple(_reasons(given, row)))


def _reasons(given: Situation, row: Row) -> Iterator[str]:
    yield f"{row.rule}: {row.why} (docs/choosing-a-rule.md)."
    if given.workers:
        yield "Exact masks: workers measure distances, and learn nothing of any update."
    else:
        yield "No masks: without workers, the enclave measures distances itself."

"""What to show."""

import json
from dataclasses import asdict, dataclass, replace

from ostraka import calibration
from ostraka.config import MIN_WORKERS, require_krum
from ostraka.demo.attacks import ATTACKS, MIXED, MIXTURE
from ostraka.errors import ConfigError

# The masking that is shown if none is asked for.
DEFAULT_MASKING = "exact"
AUTO = "auto"
WORKERS = MIN_WORKERS


@dataclass(frozen=True)
class Demo:
    """attack: a name in ATTACKS, or "mixed": they take turns. distances: "auto" until resolved."""

    clients: int = 12
    byzantine: int = 3
    dim: int = 20_000
    rounds: int = 5
    attack: str = MIXED
    masking: str = DEFAULT_MASKING
    distances: str = "workers"
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("byzantine", 0), ("dim", 1), ("rounds", 1), ("seed", 0)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} must be at least {least}; got {getattr(self, name)}")
        require_krum(self.clients, self.byzantine)
        if self.attack not in (*ATTACKS, MIXED):
            known = ", ".join((*ATTACKS, MIXED))
            raise ConfigError(f"the attack is one of {known}; got {self.attack!r}")

    @property
    def workers(self) -> int:
        """How many work: none where the enclave measures by itself."""
        return 0 if self.distances == "inside" or self.masking == "none" else WORKERS

    def attacks(self) -> list[str]:
        """What each attacker does."""
        kinds = MIXTURE if self.attack == MIXED else (self.attack,)
        return [kinds[place % len(kinds)] for place in range(self.byzantine)]

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Demo":
        return cls(**json.loads(text))


def resolve(demo: Demo) -> tuple[Demo, str | None]:
    """With distances where they are cheaper on this machine, and why, if that was left to it.

    Before the federation is founded: where distances are measured is one of its signed rules.
    """
    if demo.distances != AUTO:
        return demo, None
    if demo.masking == "none":
        return replace(demo, distances="inside"), None
    choice = calibration.load().choose(demo.clients, demo.dim, WORKERS)
    return replace(demo, distances=choice.distances), str(choice)

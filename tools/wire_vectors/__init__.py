"""Known-answer vectors of the wire: python -m wire_vectors writes them (make vectors).

tests/vectors/wire/README.md says how to read them, and a test recomputes all of them. What a party
draws at random is fixed: SHAKE-256 of a name, or of a party and the number of the draw. HPKE draws
inside its library, where nothing can be injected; so its outputs are recorded once in hpke.json,
and drawn anew only if what is sealed has changed.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from wire_vectors import maths, messages, sealed, trust
from wire_vectors.notation import Seals, Vector
from wire_vectors.played import Round, play

FOLDER = Path(__file__).parents[2] / "tests" / "vectors" / "wire"
RECORDED = "hpke"

Area: TypeAlias = Callable[[Round, Seals], list[Vector]]

AREAS: dict[str, tuple[str, Area]] = {
    "encoding": ("How fields become bytes.", messages.encodings),
    "messages": ("Every message, encoded and signed.", messages.all_messages),
    "digests": ("The hashes by which messages name each other, models and cohorts.", trust.digests),
    "round": ("One round of three clients and three workers, from keys to votes.", trust.rounds),
    "updates": ("Sealed updates in every format.", sealed.sealed_updates),
    "channels": ("What passes between the enclave and a worker.", sealed.channels),
    "streams": ("Secret streams, and what is read from them.", sealed.streams),
    "shares": ("Masking, exact and Gaussian.", maths.shares),
    "folds": ("The secret sketch.", maths.folds),
    "grams": ("Workers' matrices, decoded and checked.", maths.grams),
    "plans": ("What rules and optimisers make of a tiny cohort.", maths.plans),
    "state": ("What the enclave leaves on the host's disk.", sealed.sealed_state),
    "attestation": (
        "What evidence is about, and keys that follow from a platform's.",
        trust.attestations,
    ),
    "protobuf": ("The schema of what travels over gRPC.", trust.protobuf),
}


def make(recorded: Iterable[Vector] = ()) -> dict[str, list[Vector]]:
    """Compute every vector, by area. recorded: those of hpke.json, as they were written last."""
    seals = Seals(recorded)
    played = play(seals)
    made = {area: write(played, seals) for area, (_, write) in AREAS.items()}
    return {**made, RECORDED: seals.vectors}


def read(folder: Path = FOLDER) -> dict[str, list[Vector]]:
    """The vectors as they are written, by area."""
    return {
        path.stem: json.loads(path.read_text("utf-8"))["vectors"]
        for path in sorted(folder.glob("*.json"))
    }


def text(area: str, made: Sequence[Vector]) -> str:
    """The file of an area: one line a value, so that a change shows which one it is."""
    about = AREAS[area][0] if area in AREAS else "What HPKE has sealed, recorded."
    listed = ",\n".join(map(_vector, made))
    return f'{{"about": {json.dumps(about)},\n"vectors": [\n{listed}\n]}}\n'


def _vector(each: Vector) -> str:
    parts = [f'"{key}": {_lines(value)}' for key, value in each.items()]
    return "{" + ",\n ".join(parts) + "}"


def _lines(value: Any) -> str:
    if not isinstance(value, dict) or not value:
        return json.dumps(value)
    lines = (f"  {json.dumps(name)}: {json.dumps(each)}" for name, each in value.items())
    return "{\n" + ",\n".join(lines) + "}"

"""How a vector is written, and what stands for everything that is drawn at random."""

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, TypeAlias

import numpy as np

from ostraka.crypto import hpke
from ostraka.crypto.hpke import HybridKey
from ostraka.crypto.identity import Identity

Vector: TypeAlias = dict[str, Any]

_LONG = 1024  # bytes, of what is not written twice

DECIMALS = 9  # of results whose last bits depend on the machine


def vector(name: str, shows: str, given: Mapping[str, Any], result: Mapping[str, Any]) -> Vector:
    return {"name": name, "shows": shows, "inputs": plain(given), "outputs": plain(result)}


def hashed(
    name: str, shows: str, preimage: bytes, result: bytes, kind: str = "sha256", **given: Any
) -> Vector:
    """A digest that the product computes, beside the bytes that it has to be the digest of."""
    return vector(name, shows, {**given, "preimage": preimage}, {kind: result})


def plain(value: Any) -> Any:
    """A value as JSON has it: bytes as 0x and hex, a message as an object of its fields."""
    match value:
        case bytes() | memoryview():
            return f"0x{bytes(value).hex()}"
        case np.ndarray():
            return plain(value.tolist())
        case np.generic():
            return plain(value.item())
        case dict():
            return {name: plain(each) for name, each in value.items()}
        case list() | tuple() | range():
            return [plain(each) for each in value]
        case _ if is_dataclass(value):
            return {each.name: plain(getattr(value, each.name)) for each in fields(value)}
    return value


def sha256(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()


def fixed(name: str, size: int = 32) -> bytes:
    """What stands for a secret of this name."""
    return hashlib.shake_256(name.encode()).digest(size)


class Drawn:
    """A party's source of entropy, which gives the same bytes in every run."""

    def __init__(self, party: str) -> None:
        self._party = party
        self.log: list[bytes] = []

    def __call__(self, size: int) -> bytes:
        self.log.append(fixed(f"{self._party}/{len(self.log)}", size))
        return self.log[-1]


@dataclass(frozen=True)
class HybridSeeds:
    """What a hybrid key is made of."""

    mlkem_seed: bytes
    x25519_private: bytes

    def key(self) -> HybridKey:
        return HybridKey(SeedsInTurn(self.mlkem_seed, self.x25519_private))

    @classmethod
    def read(cls, entropy: Callable[[int], bytes]) -> "HybridSeeds":
        return cls(entropy(64), entropy(32))


class SeedsInTurn:
    """Entropy that consists of these values, one a call."""

    def __init__(self, *values: bytes) -> None:
        self._values = iter(values)

    def __call__(self, size: int) -> bytes:
        value = next(self._values)
        if len(value) != size:
            raise SystemExit(f"a draw of {size} bytes where {len(value)} were expected")
        return value


class Seals:
    """HPKE's outputs: as they were recorded, as long as the same is sealed to the same key."""

    def __init__(self, recorded: Iterable[Vector]) -> None:
        self._recorded = {each["name"]: each for each in recorded}
        self.vectors: list[Vector] = []

    def seal(self, name: str, shows: str, to: HybridSeeds, secret: bytes, info: bytes) -> bytes:
        bound = {"info": info} if len(info) < _LONG else {"sha256 of info": sha256(info)}
        made = vector(name, shows, {**vars(to), **bound, "plaintext": secret}, {})
        known = self._recorded.get(name, {})
        if known.get("inputs") == made["inputs"]:
            sealed = unhex(known["outputs"]["sealed"])
        else:
            sealed = hpke.seal(to.key().public, secret, info=info)
        self.vectors.append({**made, "outputs": {"sealed": plain(sealed)}})
        return sealed


def identity(party: str) -> Identity:
    return Identity(fixed(f"{party}'s Ed25519 seed"))


def unhex(text: str) -> bytes:
    return bytes.fromhex(text.removeprefix("0x"))

"""The rules of the rounds that are measured, by name."""

from ostraka.bench.cast import byzantine, sketch_size
from ostraka.config import Manifest, RoundConfig, default_tile
from ostraka.errors import ConfigError

GAUSSIAN, EXACT, SKETCH, SKETCH_INSIDE = "gaussian", "exact", "sketch", "sketch-inside"
_MASKINGS = {GAUSSIAN: "gaussian", EXACT: "exact", SKETCH: "exact", SKETCH_INSIDE: "none"}


def rules_of(name: str, clients: int, dim: int, *, f: int | None = None) -> RoundConfig:
    """f: None for a fifth of the clients. Raises ConfigError if there can be no such round."""
    columns = sketch_size(clients, dim) if name in (SKETCH, SKETCH_INSIDE) else dim
    if columns is None:
        raise ConfigError(f"updates of {dim} values are too short for a sketch")
    return RoundConfig(
        Manifest.flat(dim),
        f=byzantine(clients) if f is None else f,
        masking=_MASKINGS[name],
        sketch=None if name in (GAUSSIAN, EXACT) else columns,
        tile=default_tile(clients, dim),
    )

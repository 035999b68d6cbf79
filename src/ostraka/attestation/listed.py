"""Is this code listed in the policy? And if not, which lines would list it."""

from collections.abc import Mapping

from ostraka.attestation.claims import Claims
from ostraka.errors import AttestationRefused, Refusal


def require_listed(
    claims: Claims,
    section: str,
    lists: Mapping[str, tuple[bytes, ...]],
    required: tuple[str, ...],
) -> None:
    """Raises AttestationRefused unless every list that must hold a measurement holds it.

    lists: the policy's values by the measurement's name. A list that is not empty must hold the
    measurement; a required one must not be empty; and where all are empty nothing is accepted.
    """
    needed = [name for name in lists if lists[name] or name in required] or list(lists)
    present = dict(claims.measurements)
    if absent := ", ".join(name for name in needed if name not in present):
        detail = f"a policy that lists {absent} accepts no evidence in which that is absent"
        raise AttestationRefused(Refusal.MEASUREMENT, detail)
    missing = [name for name in needed if present[name] not in lists[name]]
    if missing:
        raise AttestationRefused(Refusal.MEASUREMENT, _advice(claims, section, lists, missing))


def _advice(
    claims: Claims, section: str, lists: Mapping[str, tuple[bytes, ...]], missing: list[str]
) -> str:
    """What was seen, and the lines as they would have to be: whole ones, since TOML forbids two."""
    seen = {name: claims.measurement(name) for name in missing}
    said = ", ".join(f"{name} is {value.hex()}" for name, value in seen.items())
    lines = [toml_line(name, (*lists[name], value)) for name, value in seen.items()]
    separator = " " if len(lines) == 1 else "\n"
    return (
        f"this enclave's {said}; if you decide to trust it, "
        f"write under [{section}]:{separator}{separator.join(lines)}"
    )


def toml_line(name: str, values: tuple[bytes, ...]) -> str:
    quoted = ", ".join(f'"{value.hex()}"' for value in values)
    return f"{name} = [{quoted}]"

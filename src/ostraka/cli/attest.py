"""`ostraka attest`: read and verify evidence, and print what to expect."""

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import click
import typer

from ostraka import federation_file
from ostraka.attestation import tees
from ostraka.attestation import verify as verification
from ostraka.attestation.claims import Claims
from ostraka.attestation.tees import KINDS
from ostraka.attestation.verify import Circumstances
from ostraka.cli.output import Json, pairs, show
from ostraka.enclave.measurement import MEASURED
from ostraka.enclave.measurement import measure as measure_code
from ostraka.encoding import decode, pack
from ostraka.errors import AttestationRefused, ConfigError, MalformedMessage, Refusal
from ostraka.files import read_policy
from ostraka.messages import SIMULATION, Evidence
from ostraka.transport import collateral

_REPORT_DATA = 64
_END_OF_TIME = 2**38

EvidenceFile = Annotated[Path, typer.Argument(metavar="EVIDENCE", help="File with evidence.")]
Kind = Annotated[
    str | None,
    typer.Option(
        click_type=click.Choice(KINDS),
        help="What a raw quote, report or document is; not for evidence that Ostraka wrote.",
    ),
]
Endorsements = Annotated[
    list[Path] | None,
    typer.Option("--endorsement", help="A certificate that comes with raw evidence; repeatable."),
]


def show_evidence(
    path: EvidenceFile,
    *,
    kind: Kind = None,
    endorsements: Endorsements = None,
    as_json: Json = False,
) -> None:
    """Say in plain words what evidence says.

    Nothing is verified: anyone can write such a file. The exit code is 3 if the evidence cannot be
    read.

    \b
    Examples:
      ostraka attest show evidence.bin
      ostraka attest show quote.bin --kind tdx --json
    """
    claims = verification.read(_evidence(path, kind, endorsements))
    show(
        pairs(tees.words(claims)),
        "Nothing of this was verified: it is what the evidence claims.",
        figures=_figures(claims) | {"verified": False},
        as_json=as_json,
    )


def verify(
    path: EvidenceFile,
    *,
    policy: Annotated[Path, typer.Option(help="The policy file, such as policy.toml.")],
    kind: Kind = None,
    endorsements: Endorsements = None,
    report_data: Annotated[
        str | None, typer.Option(help="The 64 bytes that it must be bound to, in hex.")
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(help="When to verify: seconds since 1970, or ISO 8601. Now unless given."),
    ] = None,
    unsafe_simulation: Annotated[
        bool,
        typer.Option("--unsafe-simulation", help="Accept simulated evidence if the policy does."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Verify evidence against a policy.

    Checks certificates, signatures, the platform and the measurements. What the evidence is bound
    to (a challenge, keys and a federation) is compared only if --report-data says what to expect.

    Exit codes: 0 accepted; 1 failed; 2 the files or arguments cannot be used; 3 refused, and the
    reason is on stderr.

    \b
    Examples:
      ostraka attest verify evidence.bin --policy policy.toml
      ostraka attest verify quote.bin --kind sgx --policy policy.toml --at 2025-07-01
      ostraka attest verify report.bin --kind snp --endorsement vcek.der --policy policy.toml --json
    """
    accepted, expected, when = read_policy(policy), _report_data(report_data), _time(at)
    try:
        evidence = _evidence(path, kind, endorsements)
        found = collateral.for_evidence(evidence, accepted, beside=policy)
        claims = verification.verify_evidence(
            evidence, accepted, Circumstances(when, found, unsafe_simulation)
        )
        if expected not in (None, claims.report_data):
            raise AttestationRefused(
                Refusal.BINDING, f"its report data is {claims.report_data.hex()}"
            )
    except AttestationRefused as refused:
        if as_json:
            show(figures={"accepted": False, "reason": refused.reason.name}, as_json=True)
        raise
    show(
        pairs(tees.words(claims)),
        f"Accepted by {policy}.",
        _binding(expected),
        figures=_figures(claims) | {"accepted": True, "bound": expected is not None, "at": when},
        as_json=as_json,
    )
    if evidence.kind == SIMULATION:
        click.echo("warning: simulated evidence proves nothing about the code", err=True)


def measure(
    *,
    config: Annotated[
        Path | None, typer.Option(help="Print the digest of this federation file as well.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Print the measurement to expect of this release.

    It is a digest of the code that an enclave runs, and of the versions of the libraries beside it:
    what a simulated platform reports as MRENCLAVE. Real platforms measure their whole image;
    docs/attestation.md says how to compute that.

    The federation's digest is no part of it, but of the report data, so that a change of the roster
    needs no new measurement.

    \b
    Examples:
      ostraka attest measure
      ostraka attest measure --config federation.toml --json
    """
    measured = measure_code()
    federation = None if config is None else federation_file.load(config).federation()
    rows = [("measurement", measured.digest.hex()), ("code", measured.code.hex())]
    figures: dict[str, Any] = {
        **dict(rows),
        "modules": len(MEASURED),
        "lines": measured.lines,
        "dependencies": dict(measured.dependencies),
    }
    rows.append(("of", f"{len(MEASURED)} modules, {measured.lines} lines (and generated code)"))
    rows += measured.dependencies
    if federation is not None:
        digest = federation.digest().hex()
        rows.append((f"federation, revision {federation.revision}", digest))
        figures |= {"revision": federation.revision, "federation_digest": digest}
    show(pairs(rows), figures=figures, as_json=as_json)


def _evidence(path: Path, kind: str | None, endorsements: list[Path] | None) -> Evidence:
    content = _read(path)
    if kind is not None:
        return Evidence(kind, content, tuple(_read(each) for each in endorsements or ()))
    if endorsements:
        raise ConfigError("--endorsement is for raw evidence, and goes with --kind")
    try:
        return decode(Evidence, content)
    except MalformedMessage:
        if content.startswith(pack(Evidence.LABEL)):
            raise AttestationRefused(Refusal.MALFORMED, f"{path} is damaged") from None
        raise ConfigError(
            f"{path} is no evidence that Ostraka wrote; for a raw quote, report or document, "
            f"say its --kind: {', '.join(KINDS)}"
        ) from None


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as unreadable:
        raise ConfigError(f"{path}: {unreadable.strerror}") from None


def _report_data(text: str | None) -> bytes | None:
    if text is None:
        return None
    try:
        data = bytes.fromhex(text)
    except ValueError:
        data = b""
    if len(data) != _REPORT_DATA:
        raise ConfigError(f"--report-data is {2 * _REPORT_DATA} hex digits")
    return data


def _time(text: str | None) -> int:
    if text is None:
        return int(time.time())
    try:
        seconds = int(text) if text.isdigit() else _seconds(datetime.fromisoformat(text))
    except ValueError:
        seconds = -1
    if not 0 <= seconds < _END_OF_TIME:
        raise ConfigError(
            f"--at is a time such as 2025-07-01T12:00:00, in UTC, or seconds; got {text!r}"
        )
    return seconds


def _seconds(moment: datetime) -> int:
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp())


def _figures(claims: Claims) -> dict[str, Any]:
    return {
        "kind": claims.kind,
        "measurements": {name: value.hex() for name, value in claims.measurements},
        "report_data": claims.report_data.hex(),
        "debug": claims.debug,
        "code_id": claims.code_id.hex(),
        "facts": dict(claims.facts),
    }


def _binding(expected: bytes | None) -> str:
    if expected is None:
        return "Not checked: what it is bound to. Give --report-data to compare that as well."
    return "Its report data is the expected one."

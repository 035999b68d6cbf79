"""`ostraka attest`: what is shown, what is accepted, and how it ends."""

import json
import shlex
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ostraka import federation_file
from ostraka.attestation.claims import Binding
from ostraka.cli import app
from ostraka.cli.federation_folder import Plan, create
from ostraka.enclave.measurement import MEASURED, measure
from ostraka.enclave.platform.simulated import UnsafeSimulatedProvider, load_platform
from ostraka.encoding import encode
from ostraka.messages import Evidence

VECTORS = Path(__file__).parents[2] / "vectors" / "evidence"
REPORT_DATA = Binding(bytes(32), b"key", bytes(32), bytes(32)).report_data()
YES = "--unsafe-simulation"


def run(line):
    return CliRunner().invoke(app, shlex.split(line), prog_name="ostraka")


def last_line_only(result):
    (line,) = result.stdout.splitlines()
    return json.loads(line)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made") / "fed"
    create(folder, Plan(clients=5, f=1), now=int(time.time()))
    platform = load_platform(folder / "simulation" / "platform.json")
    evidence = UnsafeSimulatedProvider(platform, measure().digest).evidence(REPORT_DATA)
    (folder / "evidence.bin").write_bytes(encode(evidence))
    (folder / "quote.bin").write_bytes(evidence.document)
    (folder / "root.der").write_bytes(evidence.endorsements[0])
    debug = platform.quote(REPORT_DATA, mrenclave=measure().digest, debug=True)
    (folder / "cut.bin").write_bytes(encode(evidence)[:-1])
    (folder / "debug.bin").write_bytes(encode(Evidence("simulation", debug, (platform.root_der,))))
    return folder


@pytest.fixture
def folder(made, monkeypatch):
    monkeypatch.chdir(made)
    return made


def test_show_says_what_the_evidence_says(folder):
    result = run("attest show evidence.bin")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert "a SIMULATED enclave, which proves nothing" in result.stdout
    assert ["mrenclave", measure().digest.hex()] in [line.split() for line in lines]
    assert REPORT_DATA.hex() in result.stdout
    assert "Nothing of this was verified" in result.stdout


def test_show_as_json(folder):
    figures = last_line_only(run("attest show evidence.bin --json"))
    assert figures["kind"] == "simulation"
    assert figures["measurements"]["mrenclave"] == measure().digest.hex()
    assert figures["report_data"] == REPORT_DATA.hex()
    assert figures["debug"] is False
    assert figures["verified"] is False
    assert last_line_only(run("attest show quote.bin --kind simulation --json")) == figures


def test_show_warns_of_a_debug_enclave(folder):
    assert "YES: its host can read it" in run("attest show debug.bin").stdout


def test_verify_accepts_what_the_policy_lists_and_says_what_was_not_checked(folder):
    result = run(f"attest verify evidence.bin --policy policy.toml {YES}")
    assert result.exit_code == 0
    assert "Accepted by policy.toml." in result.stdout
    assert "Not checked: what it is bound to." in result.stdout
    assert "simulated evidence proves nothing" in result.stderr


def test_verify_compares_the_report_data(folder):
    line = f"attest verify evidence.bin --policy policy.toml {YES}"
    bound = run(f"{line} --report-data {REPORT_DATA.hex()}")
    assert bound.exit_code == 0
    assert "Its report data is the expected one." in bound.stdout
    other = run(f"{line} --report-data {bytes(64).hex()}")
    assert other.exit_code == 3
    assert "another challenge" in other.stderr


def test_raw_evidence_is_verified_with_its_endorsements(folder):
    raw = "attest verify quote.bin --kind simulation --policy policy.toml"
    assert run(f"{raw} {YES} --endorsement root.der").exit_code == 0
    assert run(f"{raw} {YES}").exit_code == 3


REFUSED = {
    "simulation without the flag": ("evidence.bin --policy policy.toml", "SIMULATION_FLAG"),
    "a debug enclave": (f"debug.bin --policy policy.toml {YES}", "DEBUG"),
    "a policy that is empty": (f"evidence.bin --policy empty.toml {YES}", "SIMULATION_POLICY"),
    "another kind": ("quote.bin --kind sgx --policy policy.toml", "KIND"),
    "before its time": (
        f"evidence.bin --policy policy.toml {YES} --at 2001-01-01T00:00:00+02:00",
        "VALIDITY",
    ),
    "after its time": (f"evidence.bin --policy policy.toml {YES} --at 9999999999", "VALIDITY"),
    "other code": (f"evidence.bin --policy other.toml {YES}", "MEASUREMENT"),
    "evidence that was cut off": (f"cut.bin --policy policy.toml {YES}", "MALFORMED"),
    "no quote at all": (f"root.der --kind simulation --policy policy.toml {YES}", "ROOT"),
}


@pytest.mark.parametrize(("line", "reason"), REFUSED.values(), ids=REFUSED.keys())
def test_refusals_exit_with_3_and_give_their_reason(line, reason, folder):
    (folder / "empty.toml").write_text("version = 1\n")
    listed, other = measure().digest.hex(), bytes(32).hex()
    (folder / "other.toml").write_text((folder / "policy.toml").read_text().replace(listed, other))
    plain = run(f"attest verify {line}")
    assert plain.exit_code == 3
    assert plain.stdout == ""
    assert plain.stderr.startswith("ostraka: ")
    programs = run(f"attest verify {line} --json")
    assert programs.exit_code == 3
    assert last_line_only(programs) == {"accepted": False, "reason": reason}


def test_a_refused_measurement_comes_with_the_line_to_add(folder):
    text = (folder / "policy.toml").read_text()
    (folder / "none.toml").write_text(
        text.replace(f'mrenclave = ["{measure().digest.hex()}"]', "mrenclave = []")
    )
    result = run(f"attest verify evidence.bin --policy none.toml {YES}")
    assert result.exit_code == 3
    assert f'[simulation]: mrenclave = ["{measure().digest.hex()}"]' in result.stderr


MISTAKES = {
    "no file": ("show nothing.bin", "nothing.bin: No such file"),
    "a raw quote without its kind": ("show quote.bin", "say its --kind: sgx, tdx, snp, nitro"),
    "a kind that is not there": ("show quote.bin --kind sev", "'snp'"),
    "endorsements of what has its own": (
        "show evidence.bin --endorsement root.der",
        "goes with --kind",
    ),
    "no policy": ("verify evidence.bin", "Missing option '--policy'"),
    "a policy that is not there": ("verify evidence.bin --policy p.toml", "p.toml: No such file"),
    "a policy that is none": (
        "verify evidence.bin --policy federation.toml",
        "federation.toml, line 15: model is not known",
    ),
    "too short report data": (
        "verify evidence.bin --policy policy.toml --report-data 00",
        "128 hex digits",
    ),
    "report data of no hex": (
        "verify evidence.bin --policy policy.toml --report-data xy",
        "128 hex digits",
    ),
    "a time that is none": (
        "verify evidence.bin --policy policy.toml --at yesterday",
        "got 'yesterday'",
    ),
    "a time without end": (
        "verify evidence.bin --policy policy.toml --at 99999999999999999999",
        "--at is a time",
    ),
    "a time before time": (
        "verify evidence.bin --policy policy.toml --at 1950-01-01",
        "--at is a time",
    ),
    "a config that is not there": ("measure --config f.toml", "f.toml: No such file"),
}


@pytest.mark.parametrize(("line", "message"), MISTAKES.values(), ids=MISTAKES.keys())
def test_mistakes_are_explained_and_exit_with_2(line, message, folder):
    result = run(f"attest {line}")
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize("what", ["root.der --kind tdx", "cut.bin"])
def test_evidence_that_cannot_be_read_exits_with_3(folder, what):
    result = run(f"attest show {what}")
    assert result.exit_code == 3
    assert "cannot be read" in result.stderr


def test_measure_prints_what_to_expect(folder):
    figures = last_line_only(run("attest measure --json"))
    assert figures["measurement"] == measure().digest.hex()
    assert figures["code"] == measure().code.hex()
    assert figures["dependencies"] == dict(measure().dependencies)
    assert (figures["modules"], figures["lines"]) == (len(MEASURED), measure().lines)
    assert "federation_digest" not in figures
    assert figures["measurement"] in run("attest measure").stdout


def test_measure_prints_the_federation_s_digest_apart(folder):
    figures = last_line_only(run("attest measure --config federation.toml --json"))
    federation = federation_file.load(folder / "federation.toml").federation()
    assert figures["federation_digest"] == federation.digest().hex()
    assert figures["measurement"] == measure().digest.hex()
    text = run("attest measure --config federation.toml").stdout
    assert f"federation, revision 1  {federation.digest().hex()}" in text


POLICY = """\
version = 1
evidence = ["tdx", "snp", "nitro"]
[tdx]
{measurements}
allow = ["dynamic-platform", "cached-keys", "smt"]
collateral = "{collateral}"
"""


def test_a_real_tdx_quote_verifies_by_the_lines_that_the_refusals_advise(tmp_path):
    """Beginning with an empty policy, as a user would."""
    quote, policy = VECTORS / "dcap" / "tdx_quote", tmp_path / "policy.toml"
    collateral = VECTORS / "dcap" / "tdx_quote_collateral.json"
    line = f"attest verify {quote} --kind tdx --policy {policy} --at 2025-07-01"
    policy.write_text(POLICY.format(measurements="", collateral=collateral))
    refused = run(line)
    assert refused.exit_code == 3
    advised = refused.stderr.split("[tdx]:")[1].strip()
    policy.write_text(POLICY.format(measurements=advised, collateral=collateral))
    accepted = run(line)
    assert accepted.exit_code == 0, accepted.stderr
    assert "UpToDate" in accepted.stdout


def test_a_real_snp_report_verifies_by_the_lines_that_the_refusals_advise(tmp_path):
    """The platform's own TCB is among them: no policy has a lowest one by itself."""
    snp, policy = VECTORS / "snp", tmp_path / "policy.toml"
    line = f"attest verify {snp / 'test-report.bin'} --kind snp --policy {policy} --at 2023-11-14"
    line += f" --endorsement {snp / 'test-vcek.der'}"
    lines = ['version = 1\nevidence = ["snp"]\n[snp]\nallow = ["smt"]']
    lines.append(f'certificates = "{snp / "ask_ark_milan.pem"}"')
    for advised in ("min_tcb", "measurement"):
        policy.write_text("\n".join(lines))
        refused = run(line)
        assert refused.exit_code == 3
        lines.append(refused.stderr.split("write under [snp]:")[1].strip())
        assert lines[-1].startswith(f"{advised} = ")
    policy.write_text("\n".join(lines))
    accepted = run(line)
    assert accepted.exit_code == 0, accepted.stderr
    assert "not checked: the policy names no crl" in accepted.stdout

    policy.write_text("\n".join([*lines, 'crl = "amd.crl"']))
    missing = run(line)
    assert missing.exit_code == 2
    assert "amd.crl, which" in missing.stderr


@pytest.mark.parametrize(
    ("kind", "file"),
    [
        ("sgx", "dcap/sgx_quote"),
        ("tdx", "dcap/tdx_quote"),
        ("snp", "snp/test-report.bin"),
        ("snp", "snp/test-vlek-report.bin"),
        ("nitro", "nitro/aws_nitro_document.cbor"),
    ],
)
def test_real_evidence_of_every_kind_is_shown(kind, file):
    result = run(f"attest show {VECTORS / file} --kind {kind} --json")
    assert result.exit_code == 0
    assert last_line_only(result)["kind"] == kind

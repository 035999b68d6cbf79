"""policy.toml: what is read, what is refused, and that nothing is allowed by being left out."""

import contextlib
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostraka.attestation import dcap, snp
from ostraka.attestation.dcap import SgxPolicy, TdxPolicy
from ostraka.attestation.nitro import NitroPolicy
from ostraka.attestation.policy import FederationPolicy, Policy
from ostraka.attestation.policy_file import of_shards, parse, parse_shards
from ostraka.attestation.simulation import SimulationPolicy
from ostraka.attestation.snp import SnpPolicy, SnpTcb
from ostraka.attestation.tees import find
from ostraka.config import Federation, Manifest, Member, Terms
from ostraka.errors import ConfigError


def hexed(byte, size):
    return bytes([byte]).hex() * size


COMPLETE = f"""\
version = 1
evidence = ["sgx", "tdx", "snp", "nitro", "simulation"]
clock_skew_s = 60
unsafe_simulation = true

[federation]
authority = "{hexed(1, 32)}"
id = "{hexed(21, 32)}"
workers = ["{hexed(2, 32)}", "{hexed(3, 32)}"]
successors = ["{hexed(20, 32)}"]
maskings = ["exact", "gaussian"]
witnesses = ["{hexed(22, 32)}", "{hexed(23, 32)}"]
confirms = ["both", "none"]
rules = ["ARC + nnm + GeometricMedian", "multi-krum(k=5)"]
disclose_values = true
report_metrics = ["loss", "examples"]
shard_policies = ["{hexed(24, 32)}"]

[sgx]
mrenclave = ["{hexed(4, 32)}"]
mrsigner = ["{hexed(5, 32)}"]
isv_prod_id = 6
min_isv_svn = 7
allow = ["{dcap.ALLOWANCES[0]}"]
collateral = "sgx.json"

[tdx]
mrtd = ["{hexed(8, 48)}"]
rtmr0 = ["{hexed(9, 48)}"]
rtmr1 = ["{hexed(10, 48)}"]
rtmr2 = ["{hexed(11, 48)}"]
rtmr3 = ["{hexed(12, 48)}"]
allow = ["{dcap.ALLOWANCES[-1]}"]
collateral = "https://pccs.example"

[snp]
measurement = ["{hexed(13, 48)}"]
chip_ids = ["{hexed(14, 64)}"]
min_tcb = {{ bootloader = 1, tee = 2, snp = 3, microcode = 4, fmc = 5 }}
allow = ["{snp.ALLOWANCES[-1]}"]
certificates = "snp.pem"
crl = "snp.crl"

[nitro]
pcr0 = ["{hexed(15, 48)}"]
pcr8 = ["{hexed(16, 48)}"]

[simulation]
root = ["{hexed(17, 32)}"]
mrenclave = ["{hexed(18, 32)}"]
mrsigner = ["{hexed(19, 32)}"]
isv_prod_id = 1
min_isv_svn = 2
allow = []
collateral = "simulation/collateral.json"
"""


def b(byte, size):
    return (bytes([byte]) * size,)


def test_a_complete_policy_is_read():
    assert parse(COMPLETE, "policy.toml") == Policy(
        evidence=("sgx", "tdx", "snp", "nitro", "simulation"),
        federation=FederationPolicy(
            authority=bytes([1]) * 32,
            id=bytes([21]) * 32,
            workers=b(2, 32) + b(3, 32),
            successors=b(20, 32),
            maskings=("exact", "gaussian"),
            witnesses=b(22, 32) + b(23, 32),
            confirms=("both", "none"),
            rules=("arc+nnm+geometric-median", "multi-krum(k=5)"),
            disclose_values=True,
            report_metrics=("loss", "examples"),
            shard_policies=b(24, 32),
        ),
        clock_skew=60,
        unsafe_simulation=True,
        tees=(
            SgxPolicy(b(4, 32), b(5, 32), 6, 7, (dcap.ALLOWANCES[0],), "sgx.json"),
            TdxPolicy(
                b(8, 48),
                b(9, 48),
                b(10, 48),
                b(11, 48),
                b(12, 48),
                allow=(dcap.ALLOWANCES[-1],),
                collateral="https://pccs.example",
            ),
            SnpPolicy(
                b(13, 48),
                b(14, 64),
                SnpTcb(1, 2, 3, 4, 5),
                (snp.ALLOWANCES[-1],),
                certificates="snp.pem",
                crl="snp.crl",
            ),
            NitroPolicy(pcr0=b(15, 48), pcr8=b(16, 48)),
            SimulationPolicy(
                b(17, 32), b(18, 32), b(19, 32), 1, 2, collateral="simulation/collateral.json"
            ),
        ),
    )


def test_the_shortest_policy_is_the_empty_one_and_that_refuses_all():
    policy = parse("version = 1", "policy.toml")
    assert policy == Policy()
    assert policy.evidence == ()
    assert policy.federation.authority is None
    assert policy.federation.successors == ()
    assert not policy.unsafe_simulation
    assert "gaussian" not in policy.federation.maskings
    assert (policy.federation.id, policy.federation.witnesses) == (None, ())
    assert "none" not in policy.federation.confirms
    assert policy.federation.rules is None
    assert not policy.federation.disclose_values
    assert policy.federation.report_metrics == ()
    assert policy.federation.shard_policies == ()


def test_every_named_allowance_can_be_written():
    tdx = (*dcap.ALLOWANCES, *dcap.WAIVERS.values())
    for table, names in (("sgx", dcap.ALLOWANCES), ("tdx", tdx), ("snp", snp.ALLOWANCES)):
        listed = ", ".join(f'"{name}"' for name in names)
        policy = parse(f"version = 1\n[{table}]\nallow = [{listed}]", "p")
        assert policy.of(find(table).policy).allow == tuple(names)


V = "version = 1\n"
REFUSED = {
    "no version": ("", "p.toml: version is missing"),
    "another version": ("version = 2", "p.toml, line 1: version 2 is not known"),
    "evidence that is not there": (
        V + 'evidence = [\n "tdx",\n "txd"]',
        "p.toml, line 4: evidence has sgx, tdx, snp, nitro, simulation; got 'txd'",
    ),
    "a masking that is not there": (
        V + '[federation]\nmaskings = ["exakt"]',
        "p.toml, line 3: federation.maskings has exact, gaussian, none; got 'exakt'",
    ),
    "a masking as a text": (
        V + '[federation]\nmaskings = "exact"',
        'p.toml, line 3: federation.maskings is a list; got "exact"',
    ),
    "an authority of another length": (
        V + '[federation]\nauthority = "00"',
        "p.toml, line 3: federation.authority is 64 hex digits; got 2",
    ),
    "an authority that lacks a digit": (
        V + f'[federation]\nauthority = "{hexed(1, 32)[1:]}"',
        "p.toml, line 3: federation.authority is 64 hex digits; got 63",
    ),
    "an empty authority": (
        V + '[federation]\nauthority = ""',
        "p.toml, line 3: federation.authority is 64 hex digits; got 0",
    ),
    "an id of another length": (
        V + f'[federation]\nid = "{hexed(1, 31)}"',
        "p.toml, line 3: federation.id is 64 hex digits; got 62",
    ),
    "a witness's key of another length": (
        V + f'[federation]\nwitnesses = [\n "{hexed(1, 32)}",\n "{hexed(1, 33)}",\n]',
        "p.toml, line 5: federation.witnesses[1] is 64 hex digits; got 66",
    ),
    "confirmation by nobody known": (
        V + '[federation]\nconfirms = ["clients", "auditors"]',
        "p.toml, line 3: federation.confirms has clients, witnesses, both, none; got 'auditors'",
    ),
    "a rule that is not there": (
        V + '[federation]\nrules = [\n "mean",\n "multy-krum"]',
        "p.toml, line 5: federation.rules[1]: there is no rule 'multy-krum': "
        "did you mean multi-krum?",
    ),
    "a rule with an option that it does not take": (
        V + '[federation]\nrules = ["mean(k=3)"]',
        "p.toml, line 3: federation.rules[0]: k is no option of mean",
    ),
    "a rule as a text": (
        V + '[federation]\nrules = "mean"',
        'p.toml, line 3: federation.rules is a list; got "mean"',
    ),
    "a worker's key of another length": (
        V + f'[federation]\nworkers = [\n "{hexed(1, 32)}",\n "{hexed(1, 33)}",\n]',
        "p.toml, line 5: federation.workers[1] is 64 hex digits; got 66",
    ),
    "a successor of another length": (
        V + '[federation]\nsuccessors = ["00"]',
        "p.toml, line 3: federation.successors[0] is 64 hex digits; got 2",
    ),
    "an MRTD of an MRENCLAVE's length": (
        V + f'[tdx]\nmrtd = ["{hexed(1, 32)}"]',
        "p.toml, line 3: tdx.mrtd[0] is 96 hex digits; got 64",
    ),
    "an MRENCLAVE that is empty": (
        V + '[sgx]\nmrenclave = [""]',
        "p.toml, line 3: sgx.mrenclave[0] is 64 hex digits; got 0",
    ),
    "a chip id of another length": (
        V + f'[snp]\nchip_ids = ["{hexed(1, 48)}"]',
        "p.toml, line 3: snp.chip_ids[0] is 128 hex digits; got 96",
    ),
    "a PCR of another length": (
        V + '[nitro]\npcr8 = ["00"]',
        "p.toml, line 3: nitro.pcr8[0] is 96 hex digits; got 2",
    ),
    "a simulated root of another length": (
        V + '[simulation]\nroot = ["00"]',
        "p.toml, line 3: simulation.root[0] is 64 hex digits; got 2",
    ),
    "a PCR that no policy knows": (
        V + "[nitro]\npcr5 = []",
        "p.toml, line 3: nitro.pcr5 is not known; did you mean pcr",
    ),
    "an allowance that is not there": (
        V + '[sgx]\nmin_isv_svn = 0\nallow = ["Everything"]',
        "p.toml, line 4: cannot allow Everything",
    ),
    "a revoked platform": (V + '[tdx]\nallow = ["Revoked"]', "p.toml, line 3: cannot allow"),
    "SGX's allowance for SNP": (
        V + f'[snp]\nallow = ["{dcap.ALLOWANCES[0]}"]',
        "p.toml, line 3: [snp] allow: ",
    ),
    "a simulated allowance that is not there": (
        V + '[simulation]\nallow = ["x"]',
        "p.toml, line 3: cannot allow x",
    ),
    "a version below zero": (
        V + "[sgx]\nmin_isv_svn = -1",
        "p.toml, line 3: sgx.min_isv_svn cannot be negative; got -1",
    ),
    "a TCB below zero": (
        V + "[snp]\nmin_tcb = { bootloader = 3, tee = -1, snp = 8, microcode = 115 }",
        "p.toml, line 3: snp.min_tcb.tee cannot be negative; got -1",
    ),
    "a TCB of zeros": (
        V + "[snp]\nmin_tcb = { bootloader = 0, tee = 0, snp = 0, microcode = 0, fmc = 0 }",
        "p.toml, line 3: a min_tcb of zeros accepts every version; who wants that adds "
        '"any-tcb" to allow under [snp]',
    ),
    "a TCB without one of its parts": (
        V + "[snp]\nmin_tcb = { bootloader = 3, tee = 0, snp = 8 }",
        "p.toml, line 3: snp.min_tcb.microcode is missing",
    ),
    "a TCB that is stated, and any": (
        V + "[snp]\nmin_tcb = { bootloader = 3, tee = 0, snp = 8, microcode = 115 }\n"
        'allow = ["any-tcb"]',
        "p.toml, line 3: [snp] states min_tcb, and allows any-tcb: keep one of them",
    ),
    "a register that is listed, and waived": (
        V + f'[tdx]\nrtmr0 = ["{hexed(9, 48)}"]\nallow = ["any-rtmr0"]',
        "p.toml, line 3: [tdx] lists rtmr0, and allows any-rtmr0: keep one of them",
    ),
    "a revocation list from a service": (
        V + '[snp]\ncrl = "https://kdsintf.example/vcek/v1/Milan/crl"',
        "p.toml, line 3: snp.crl is a path, not a URL",
    ),
    "a part of a TCB that is not there": (
        V + "[snp]\nmin_tcb = { microcod = 1 }",
        "p.toml, line 3: snp.min_tcb.microcod is not known; did you mean microcode?",
    ),
    "clocks that differ by a negative time": (
        V + "clock_skew_s = -1",
        "p.toml, line 2: clock_skew_s is 0 to 86400; got -1",
    ),
    "clocks that may show anything": (V + "clock_skew_s = 99999999", "p.toml, line 2: clock_skew"),
    "simulation allowed by a word": (
        V + 'unsafe_simulation = "yes"',
        'p.toml, line 2: unsafe_simulation is true or false; got "yes"',
    ),
    "simulation allowed under a misspelt name": (
        V + "unsafe_simulations = true",
        "p.toml, line 2: unsafe_simulations is not known; did you mean unsafe_simulation?",
    ),
    "simulation allowed by its name in version 0.1": (
        V + "insecure_allow_simulation = true",
        "p.toml, line 2: insecure_allow_simulation is not known; did you mean unsafe_simulation?",
    ),
    "simulation allowed in the wrong table": (
        V + "[simulation]\nunsafe_simulation = true",
        "p.toml, line 3: simulation.unsafe_simulation is not known",
    ),
    "AMD's certificates from a service": (
        V + '[snp]\ncertificates = "https://amd.example"',
        "p.toml, line 3: snp.certificates is a path, not a URL",
    ),
    "no TOML": ("version = 1\nevidence = [", "p.toml, line 2: "),
}


@pytest.mark.parametrize(("text", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_meant_is_refused_with_its_line(text, message):
    with pytest.raises(ConfigError, match=re.escape(message)) as refused:
        parse(text, "p.toml")
    assert str(refused.value).startswith(message)


@given(st.text())
def test_any_text_is_read_or_refused_as_a_config_error(text):
    with contextlib.suppress(ConfigError):
        parse(text, "p")


VALUES = st.sampled_from(["0", "-1", "true", "nan", "''", "'00'", "[]", "[1]", "['00']", "{}"])
SETTINGS = [i for i, line in enumerate(COMPLETE.splitlines()) if " = " in line]


@given(st.sampled_from(SETTINGS), VALUES)
def test_any_value_for_any_setting_is_read_or_refused_as_a_config_error(at, value):
    lines = COMPLETE.splitlines()
    lines[at] = f"{lines[at].split(' = ')[0]} = {value}"
    with contextlib.suppress(ConfigError):
        parse("\n".join(lines), "p")


SHARDS = f"""\
version = 1
evidence = ["nitro"]
clock_skew_s = 7

[nitro]
pcr0 = ["{hexed(15, 48)}"]
"""


def with_shards(text):
    clients = tuple(Member(f"c-{i}", bytes([i]) * 32) for i in range(4))
    terms = Terms(Manifest.flat(20), f=0, distances="inside", tile=16)
    return Federation(terms, clients, (), b"a" * 32, b"i" * 32, shard_policy=text)


def test_a_policy_for_shards_is_that_of_their_platforms():
    policy = Policy(evidence=("nitro",), clock_skew=7, tees=(NitroPolicy(pcr0=b(15, 48)),))
    assert parse_shards(SHARDS, "shards.toml") == policy
    assert of_shards(with_shards(SHARDS)) == policy


NOT_FOR_SHARDS = {
    "a federation of its own": (
        SHARDS + "[federation]\n",
        "s.toml, line 7: a policy for shards says nothing of a federation",
    ),
    "no kind of evidence": (V, "s.toml: evidence lists no kind"),
    "an empty list of kinds": (V + "evidence = []", "s.toml, line 2: evidence lists no kind"),
    "a measurement that is none": (
        V + 'evidence = ["nitro"]\n[nitro]\npcr0 = ["ab"]',
        "s.toml, line 4: nitro.pcr0[0] is 96 hex digits; got 2",
    ),
}


@pytest.mark.parametrize(("text", "message"), NOT_FOR_SHARDS.values(), ids=NOT_FOR_SHARDS.keys())
def test_what_is_no_policy_for_shards_is_refused_with_its_line(text, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        parse_shards(text, "s.toml")


def test_a_federation_without_shards_has_no_policy_for_them():
    with pytest.raises(ConfigError, match="revision 1 of the federation has no shards"):
        of_shards(with_shards(""))

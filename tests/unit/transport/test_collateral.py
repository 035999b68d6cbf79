"""Collateral from files and from a service: a real HTTP server on loopback plays the PCCS."""

import json
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import quote as percent

import pytest

from ostraka.attestation import dcap, policy_file
from ostraka.attestation.dcap import SgxPolicy, TdxPolicy
from ostraka.attestation.simulation import UnsafeSimulatedPlatform
from ostraka.errors import AttestationRefused, ConfigError
from ostraka.messages import Evidence
from ostraka.transport import collateral

NOW = 1_800_000_000
PLATFORM = UnsafeSimulatedPlatform(bytes(32), issued=NOW - 1000)
QUOTE = PLATFORM.quote(bytes(64), mrenclave=b"\1" * 32)
SAID = json.loads(PLATFORM.collateral())

PCK = "/sgx/certification/v4/pckcrl"
ROOT = "/sgx/certification/v4/rootcacrl"
TCB = "/sgx/certification/v4/tcb"
IDENTITY = "/sgx/certification/v4/qe/identity"


def signed(name, content, signature):
    return f'{{"{name}":{content},"signature":"{signature}"}}'.encode()


def answers(said=SAID, tee="sgx"):
    """By path: status, headers and body, as a PCCS gives them."""
    return {
        PCK: (
            200,
            {"SGX-PCK-CRL-Issuer-Chain": percent(said["pck_crl_issuer_chain"])},
            bytes.fromhex(said["pck_crl"]),
        ),
        ROOT: (200, {}, said["root_ca_crl"].encode()),
        TCB.replace("sgx", tee): (
            200,
            {"TCB-Info-Issuer-Chain": percent(said["tcb_info_issuer_chain"])},
            signed("tcbInfo", said["tcb_info"], said["tcb_info_signature"]),
        ),
        IDENTITY.replace("sgx", tee): (
            200,
            {"SGX-Enclave-Identity-Issuer-Chain": percent(said["qe_identity_issuer_chain"])},
            signed("enclaveIdentity", said["qe_identity"], said["qe_identity_signature"]),
        ),
    }


@dataclass
class Server:
    port: int
    asked: list[str] = field(default_factory=list)

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"


@contextmanager
def serving(replies):
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            served.asked.append(self.path)
            status, headers, body = replies.get(self.path.partition("?")[0], (404, {}, b""))
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        served = Server(server.server_port)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield served
        finally:
            server.shutdown()
            thread.join()


def load(url, tmp_path, quote=QUOTE):
    return collateral.load(url, beside=tmp_path / "policy.toml", quote=quote)


@pytest.mark.parametrize("suffix", ["", "/", "/sgx/certification/v4", "/tdx/certification/v4/"])
def test_a_service_s_answers_make_collateral_that_verifies(suffix, tmp_path):
    with serving(answers()) as pccs:
        fetched = load(pccs.url + suffix, tmp_path)
    assert {name: json.loads(fetched)[name] for name in SAID} == SAID
    claims = dcap.verify(
        Evidence("simulation", QUOTE, ()),
        collateral={"collateral": fetched},
        policy=SgxPolicy(mrenclave=(b"\1" * 32,)),
        now=NOW,
        skew=0,
        root=PLATFORM.root_der,
    )
    assert claims.measurement("mrenclave") == b"\1" * 32


def test_a_tdx_quote_asks_for_tdx_and_verifies(tmp_path):
    quote = PLATFORM.td_quote(bytes(64), mrtd=b"\2" * 48)
    with serving(answers(json.loads(PLATFORM.td_collateral()), "tdx")) as pccs:
        fetched = load(pccs.url, tmp_path, quote)
    assert any(path.startswith("/tdx/certification/v4/tcb?fmspc=") for path in pccs.asked)
    zero = (bytes(48),)
    dcap.verify(
        Evidence("tdx", quote, ()),
        collateral={"collateral": fetched},
        policy=TdxPolicy(mrtd=(b"\2" * 48,), rtmr0=zero, rtmr1=zero, rtmr2=zero),
        now=NOW,
        skew=0,
        root=PLATFORM.root_der,
    )


def test_each_thing_is_asked_for_once_and_nothing_else(tmp_path):
    with serving(answers()) as pccs:
        load(pccs.url, tmp_path)
    assert [path.partition("?")[0] for path in pccs.asked] == [PCK, TCB, IDENTITY, ROOT]


def test_lists_may_be_written_as_hex_or_as_they_are(tmp_path):
    replies = answers()
    replies[PCK] = (*replies[PCK][:2], SAID["pck_crl"].encode())
    replies[ROOT] = (200, {}, bytes.fromhex(SAID["root_ca_crl"]))
    with serving(replies) as pccs:
        fetched = json.loads(load(pccs.url, tmp_path))
    assert {name: fetched[name] for name in SAID} == SAID


def test_a_redirect_is_not_followed(tmp_path):
    with serving({}) as other:
        replies = answers()
        replies[ROOT] = (302, {"Location": f"{other.url}/crl"}, b"")
        with serving(replies) as pccs, pytest.raises(AttestationRefused, match="answers 302"):
            load(pccs.url, tmp_path)
        assert other.asked == []


def test_a_missing_list_is_not_asked_for_elsewhere(tmp_path):
    """dcap-qvl's own fetch would go where a certificate of the service's choice sends it."""
    replies = answers()
    del replies[ROOT]
    with serving(replies) as pccs, pytest.raises(AttestationRefused, match="rootcacrl answers 404"):
        load(pccs.url, tmp_path)


UNUSABLE = {
    "no chain for the PCK's list": (PCK, (200, {}, b"x"), "answers without SGX-PCK-CRL-Issuer"),
    "no chain for the TCB": (TCB, (200, {}, answers()[TCB][2]), "without TCB-Info-Issuer-Chain"),
    "no JSON": (TCB, (200, answers()[TCB][1], b"<html>"), "without a signed tcbInfo"),
    "JSON of nothing": (TCB, (200, answers()[TCB][1], b"[]"), "without a signed tcbInfo"),
    "no signature": (TCB, (200, answers()[TCB][1], b'{"tcbInfo":{}}'), "a signed tcbInfo"),
    "a signature of no hex": (
        IDENTITY,
        (200, answers()[IDENTITY][1], signed("enclaveIdentity", "{}", "xy")),
        "a signed enclaveIdentity",
    ),
    "an error of the service": (IDENTITY, (500, {}, b""), "answers 500"),
    "too much": (ROOT, (200, {}, bytes(2**22 + 1)), "answers 200, 4194305 bytes"),
}


@pytest.mark.parametrize(("path", "reply", "message"), UNUSABLE.values(), ids=UNUSABLE.keys())
def test_answers_that_cannot_be_used_are_refused(path, reply, message, tmp_path):
    with serving({**answers(), path: reply}) as pccs, pytest.raises(AttestationRefused) as refused:
        load(pccs.url, tmp_path)
    assert message in str(refused.value)


def test_a_service_that_is_not_there_is_refused(tmp_path):
    with serving({}) as pccs:
        gone = pccs.url
    with pytest.raises(AttestationRefused, match="Connection refused"):
        load(gone, tmp_path)


def test_a_quote_that_is_none_is_refused_before_anybody_is_asked(tmp_path):
    with serving(answers()) as pccs, pytest.raises(AttestationRefused):
        load(pccs.url, tmp_path, quote=b"hello")
    assert pccs.asked == []


@pytest.mark.parametrize("url", ["http://", "https://[", "http://host:port"])
def test_a_url_that_is_none_is_refused(url, tmp_path):
    with pytest.raises(ConfigError, match="no URL"):
        load(url, tmp_path)


def test_intel_s_own_service_has_its_root_s_list_on_its_other_host(monkeypatch):
    asked = []
    monkeypatch.setattr(collateral._Service, "get", lambda *args: asked.append(args))
    collateral._Service.of("https://api.trustedservices.intel.com").root_crl()
    ((service, path),) = asked
    assert (service.host, path) == (
        "certificates.trustedservices.intel.com",
        "/IntelSGXRootCA.der",
    )


def test_each_kind_of_evidence_has_its_own_source(tmp_path):
    for name in ("sgx", "tdx", "snp", "crl", "simulation"):
        (tmp_path / name).write_text(f"for {name}")
    text = 'version = 1\nevidence = ["sgx", "snp", "nitro", "simulation"]\n'
    text += "".join(f'[{name}]\ncollateral = "{name}"\n' for name in ("sgx", "tdx", "simulation"))
    policy = policy_file.parse(text + '[snp]\ncertificates = "snp"\ncrl = "crl"', "policy.toml")

    def found(kind):
        evidence = Evidence(kind, b"", ())
        return collateral.for_evidence(evidence, policy, beside=tmp_path / "policy.toml")

    assert found("sgx") == {"collateral": b"for sgx"}
    assert found("snp") == {"certificates": b"for snp", "crl": b"for crl"}
    assert found("simulation") == {"collateral": b"for simulation"}
    assert found("nitro") == {}
    assert found("tdx") == {}, "what a policy does not accept is not even asked for"
    assert found("other") == {}


def test_a_revocation_list_that_is_named_must_be_there(tmp_path):
    text = 'version = 1\nevidence = ["snp"]\n[snp]\ncrl = "amd.crl"'
    policy = policy_file.parse(text, "policy.toml")
    with pytest.raises(ConfigError, match=r"amd\.crl, which .*policy\.toml names: No such file"):
        collateral.for_evidence(Evidence("snp", b"", ()), policy, beside=tmp_path / "policy.toml")


def test_a_path_is_relative_to_the_policy_file(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "c.json").write_bytes(b"here")
    assert load("sub/c.json", tmp_path) == b"here"
    assert load(str(tmp_path / "sub" / "c.json"), tmp_path) == b"here"
    with pytest.raises(ConfigError, match=r"c\.json, which .*policy\.toml names: No such file"):
        load("c.json", tmp_path)

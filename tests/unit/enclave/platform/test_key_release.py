import base64
import json
import sys

import pytest

from ostraka.crypto.hpke import HybridKey, seal
from ostraka.crypto.identity import Identity
from ostraka.enclave.platform.interface import sealing_key
from ostraka.enclave.platform.key_release import KeyRelease, ReleasedKey, report_data_for
from ostraka.encoding import UNSIGNED
from ostraka.errors import PlatformError
from ostraka.messages import Evidence

BROKER = Identity(b"b" * 32)
SECRET = b"s" * 32
INFO = b"ostraka/key-release/v1"

# A broker that knows of `document` only that it must be about the public key. A real one verifies.
SCRIPT = """
import base64, hashlib, json, sys

from ostraka.crypto.hpke import seal
from ostraka.crypto.identity import Identity
from ostraka.encoding import UNSIGNED, pack
from ostraka.enclave.platform.interface import sealing_key
from ostraka.enclave.platform.key_release import ReleasedKey

line = sys.stdin.readline()
assert line.endswith("\\n") and not sys.stdin.read()
request = json.loads(line)
assert sorted(request) == ["document", "endorsements", "kind", "public_key", "version"]
assert request["version"] == "ostraka/key-release/v1"
assert request["kind"] == "tdx"
public = base64.b64decode(request["public_key"], validate=True)
document = base64.b64decode(request["document"], validate=True)
bound = pack(b"ostraka/key-release/v1", public)
assert document == b"quote about " + hashlib.sha512(bound).digest()
assert [base64.b64decode(each) for each in request["endorsements"]] == [b"certificate", b"another"]

sealed = seal(public, b"s" * 32, info=b"ostraka/key-release/v1")
released = Identity(b"b" * 32).sign(ReleasedKey(public, sealed, UNSIGNED))
answer = {"sealed_key": sealed, "signature": released.signature}
print(json.dumps({name: base64.b64encode(value).decode() for name, value in answer.items()}))
"""


class Provider:
    kind = "tdx"

    def __init__(self):
        self.asked: list[bytes] = []

    def evidence(self, report_data):
        self.asked.append(report_data)
        return Evidence("tdx", b"quote about " + report_data, (b"certificate", b"another"))


def test_a_broker_in_another_process_hands_over_its_key(tmp_path):
    script = tmp_path / "broker.py"
    script.write_text(SCRIPT)
    provider = Provider()
    release = KeyRelease([sys.executable, str(script)], provider, broker=BROKER.public)
    key = release.key()
    assert len(key) == 32
    assert key == sealing_key(SECRET, b"ostraka/sealing-key/key-release/v1")
    assert release.key() == key
    assert provider.asked[0] != provider.asked[1]  # a fresh public key each time


@pytest.fixture
def released(monkeypatch):
    """KeyRelease.key() with a broker in this process: a function from the public key to a line."""

    def key(broker, seen=lambda request: None):
        def ask(command, request, *, seconds, largest):
            seen(request)
            return broker(base64.b64decode(json.loads(request)["public_key"]))

        monkeypatch.setattr("ostraka.enclave.platform.key_release.ask", ask)
        return KeyRelease(["broker"], Provider(), broker=BROKER.public).key()

    return key


def line(sealed, signature, **more):
    fields = {"sealed_key": sealed, "signature": signature}
    encoded = {name: base64.b64encode(value).decode() for name, value in fields.items()}
    return json.dumps(encoded | more).encode() + b"\n"


def honest(public, *, secret=SECRET, info=INFO, broker=BROKER):
    sealed = seal(public, secret, info=info)
    return line(sealed, broker.sign(ReleasedKey(public, sealed, UNSIGNED)).signature)


def replayed(public):
    """The host plays back the answer to an earlier request."""
    return honest(HybridKey().public)


def of_the_host(public):
    """Sealed rightly, under a key that the host knows, and signed by nobody who counts."""
    return honest(public, broker=Identity(b"h" * 32))


def unsigned(public):
    return line(seal(public, SECRET, info=INFO), UNSIGNED)


def resealed(public):
    """An honest signature over another sealed key."""
    mine = json.loads(honest(public))
    theirs = json.loads(of_the_host(public))
    return json.dumps(mine | {"sealed_key": theirs["sealed_key"]}).encode()


def sealed_to_another(public):
    sealed = seal(HybridKey().public, SECRET, info=INFO)
    return line(sealed, BROKER.sign(ReleasedKey(public, sealed, UNSIGNED)).signature)


def not_base64(public):
    fields = json.loads(honest(public))
    return json.dumps(fields | {"sealed_key": "*" + fields["sealed_key"]}).encode()


REFUSALS = {
    "an old answer": (replayed, "not signed by the pinned broker"),
    "a key of the host's choice": (of_the_host, "not signed by the pinned broker"),
    "a key without a signature": (unsigned, "not signed by the pinned broker"),
    "another key under the signature": (resealed, "not signed by the pinned broker"),
    "a signature of no length": (lambda public: line(b"x", b""), "not signed by the pinned"),
    "a key sealed to another": (sealed_to_another, "not sealed to the key of this request"),
    "a key sealed for another use": (lambda p: honest(p, info=b"x"), "not sealed to the key"),
    "a short key": (lambda p: honest(p, secret=b"s" * 31), "31 bytes instead of 32"),
    "a long key": (lambda p: honest(p, secret=b"s" * 33), "33 bytes instead of 32"),
    "nothing": (lambda public: b"", "answer is not"),
    "no JSON": (lambda public: b"{", "answer is not"),
    "two lines": (lambda public: honest(public) * 2, "answer is not"),
    "a list": (lambda public: b"[]", "answer is not"),
    "deep brackets": (lambda public: b"[" * 60_000, "answer is not"),
    "no UTF-8": (lambda public: b"\xff", "answer is not"),
    "a number for a key": (lambda public: line(b"", b"", sealed_key=7), "answer is not"),
    "a key that is not base64": (not_base64, "answer is not"),
    "an error of the broker": (lambda public: b'{"error": "no"}', "answer is not"),
}


@pytest.mark.parametrize("what", REFUSALS)
def test_any_other_answer_is_refused(released, what):
    broker, message = REFUSALS[what]
    with pytest.raises(PlatformError, match=message) as caught:
        released(broker)
    assert SECRET.decode() not in str(caught.value)


def test_an_honest_answer_is_taken(released):
    assert released(honest) == released(honest)
    assert released(honest) != released(lambda p: honest(p, secret=b"t" * 32))


def test_the_request_is_one_line_without_secrets(released):
    lines: list[bytes] = []
    released(honest, lines.append)
    assert lines[0].count(b"\n") == 1
    assert lines[0].endswith(b"\n")


def test_report_data_binds_the_public_key():
    assert len(report_data_for(b"key")) == 64
    assert report_data_for(b"key") != report_data_for(b"kez")


def test_a_broker_that_fails_is_an_error():
    release = KeyRelease(["false"], Provider(), broker=BROKER.public)
    with pytest.raises(PlatformError, match="'false' failed with exit code 1"):
        release.key()


def test_a_broker_that_does_not_answer_is_an_error():
    release = KeyRelease(["sleep", "600"], Provider(), broker=BROKER.public, seconds=0.2)
    with pytest.raises(PlatformError, match=r"did not end within 0\.2 s"):
        release.key()

"""The security module is played at the byte level, as the kernel's driver speaks to it."""

import ctypes
import errno
import struct
from pathlib import Path

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostraka.enclave.platform.nitro import NitroProvider
from ostraka.errors import LocalProtocolError, PlatformError

REPORT_DATA = bytes(range(64))
DEVICE = Path("/dev/null")


class Module:
    """answer: what it sends for a request, as bytes."""

    def __init__(self, answer):
        self.answer = answer
        self.requests: list[bytes] = []

    def __call__(self, device, number, structure):
        assert number == 0xC0200A00
        view = memoryview(structure).cast("B")
        address, length, to, room = struct.unpack("<4Q", view)
        self.requests.append(ctypes.string_at(address, length))
        answer = self.answer(self.requests[-1])
        sent = min(len(answer), room)
        ctypes.memmove(to, answer, sent)
        view[24:32] = struct.pack("<Q", sent)


def document(request):
    user_data = cbor2.loads(request)["Attestation"]["user_data"]
    return cbor2.dumps({"Attestation": {"document": b"signed " + user_data}})


def test_evidence_is_the_document():
    evidence = NitroProvider(DEVICE, Module(document)).evidence(REPORT_DATA)
    assert (evidence.kind, evidence.document) == ("nitro", b"signed " + REPORT_DATA)
    assert evidence.endorsements == ()


def test_the_request_to_the_byte():
    module = Module(document)
    NitroProvider(DEVICE, module).evidence(REPORT_DATA)
    text = lambda word: bytes([0x60 | len(word)]) + word.encode()  # noqa: E731
    null = b"\xf6"
    assert module.requests == [
        b"\xa1" + text("Attestation") + b"\xa3"
        + text("user_data") + b"\x58\x40" + REPORT_DATA
        + text("nonce") + null
        + text("public_key") + null
    ]  # fmt: skip


def test_a_long_document_fits():
    def long(request):
        user_data = cbor2.loads(request)["Attestation"]["user_data"]
        return cbor2.dumps({"Attestation": {"document": user_data + bytes(12_000)}})

    evidence = NitroProvider(DEVICE, Module(long)).evidence(REPORT_DATA)
    assert evidence.document == REPORT_DATA + bytes(12_000)


ANSWERS = {
    "an error": (cbor2.dumps({"Error": "InvalidArgument"}), "refuses: InvalidArgument"),
    "nothing": (b"", "cannot be read"),
    "no CBOR": (b"\xff\xff\xff", "cannot be read"),
    "a cut answer": (document(cbor2.dumps({"Attestation": {"user_data": REPORT_DATA}}))[:-1],
                     "cannot be read"),
    "too long an answer": (cbor2.dumps({"Attestation": {"document": bytes(0x3000)}}),
                           "cannot be read"),
    "another answer": (cbor2.dumps({"GetRandom": {"random": b"4"}}), "cannot be read"),
    "a document that is text": (cbor2.dumps({"Attestation": {"document": "x"}}), "cannot be read"),
    "a list": (cbor2.dumps([1, 2]), "cannot be read"),
    "an error that is no word": (cbor2.dumps({"Error": 7}), "cannot be read"),
    "another document": (cbor2.dumps({"Attestation": {"document": b"signed"}}), "not about"),
}  # fmt: skip


@pytest.mark.parametrize("what", ANSWERS)
def test_any_other_answer_is_an_error(what):
    answer, message = ANSWERS[what]
    with pytest.raises(PlatformError, match=message):
        NitroProvider(DEVICE, Module(lambda _: answer)).evidence(REPORT_DATA)


def test_a_length_beyond_the_buffer_reads_no_foreign_memory():
    def lies(device, number, structure):
        memoryview(structure).cast("B")[24:32] = struct.pack("<Q", 1 << 40)

    with pytest.raises(PlatformError):
        NitroProvider(DEVICE, lies).evidence(REPORT_DATA)


@pytest.mark.parametrize("length", [0, 63, 65])
def test_report_data_has_64_bytes(length):
    with pytest.raises(LocalProtocolError):
        NitroProvider(DEVICE, Module(document)).evidence(bytes(length))


def test_without_the_device(tmp_path):
    with pytest.raises(PlatformError, match="inside a Nitro Enclave"):
        NitroProvider(tmp_path / "nsm").evidence(REPORT_DATA)


def test_another_device_does_not_know_the_request():
    with pytest.raises(PlatformError, match="ENOTTY"):
        NitroProvider(DEVICE).evidence(REPORT_DATA)


def test_a_module_that_does_not_answer():
    def silent(device, number, structure):
        raise OSError(errno.ETIMEDOUT, "Connection timed out")

    with pytest.raises(PlatformError, match=r"ETIMEDOUT.*restart the enclave"):
        NitroProvider(DEVICE, silent).evidence(REPORT_DATA)


@given(st.binary(max_size=64))
def test_any_bytes_are_an_answer_or_one_error(answer):
    with pytest.raises(PlatformError):
        NitroProvider(DEVICE, Module(lambda _: answer)).evidence(REPORT_DATA)

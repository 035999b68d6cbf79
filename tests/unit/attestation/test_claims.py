"""What a code id is made of, and what report data binds.

A code id is of all that was measured of the code, and of nothing about where it runs.
"""

import hashlib
from typing import Any

import pytest

from ostraka.attestation.claims import Attested, Binding, Claims, in_process
from ostraka.messages import RoundOffer

PCRS = {f"pcr{index}": bytes([index]) * 48 for index in (0, 1, 2, 3, 4, 8)}


def code_id(kind, measurements, **more):
    settings: dict[str, Any] = {"report_data": b"", "debug": False} | more
    return Claims(kind, tuple(measurements.items()), **settings).code_id


def test_a_measurement_of_a_place_is_left_out_and_no_other_is():
    places = ("pcr3", "pcr4")
    for name in PCRS:
        other = code_id("nitro", PCRS | {name: b"x" * 48}, places=places)
        assert (other == code_id("nitro", PCRS, places=places)) == (name in places)


def test_without_places_every_measurement_counts():
    assert code_id("tdx", {"pcr3": b"a"}) != code_id("tdx", {"pcr3": b"b"})


def test_an_enclave_in_the_same_process_has_the_id_of_no_code():
    offer = RoundOffer(1, b"r" * 32, b"f" * 32, bytes(32), bytes(32), b"k" * 1216, (0,), b"s" * 64)
    attested = in_process(offer, b"e" * 32)
    assert attested == Attested(offer.key, b"e" * 32, offer.federation, "in-process", b"\0" * 32)


SGX = {"mrenclave": b"e" * 32, "mrsigner": b"s" * 32}
OTHERS = {
    "another kind": ("simulation", SGX),
    "another value": ("sgx", SGX | {"mrenclave": b"f" * 32}),
    "a value less": ("sgx", {"mrenclave": b"e" * 32}),
    "values under each other's names": ("sgx", {"mrenclave": b"s" * 32, "mrsigner": b"e" * 32}),
    "values cut elsewhere": ("sgx", {"mrenclave": b"e" * 32 + b"s", "mrsigner": b"s" * 31}),
}


@pytest.mark.parametrize("what", OTHERS)
def test_a_code_id_is_of_all_that_was_measured(what):
    assert code_id(*OTHERS[what]) != code_id("sgx", SGX)


def test_a_code_id_is_not_of_one_challenge():
    """What was asked, and what else a person may read, changes from one document to the next."""
    more = {"report_data": b"r" * 64, "facts": (("timestamp", "1"),)}
    assert code_id("sgx", SGX, **more) == code_id("sgx", SGX)


FIELDS = (b"n" * 32, b"k" * 1216, b"r" * 32, b"c" * 32)


def behind_lengths(*parts: bytes) -> bytes:
    return b"".join(len(part).to_bytes(8, "big") + part for part in parts)


def test_report_data_starts_with_its_label():
    """No hash that was made for another purpose, or in another version, passes for report data."""
    report_data = Binding(*FIELDS).report_data()
    labelled = behind_lengths(b"ostraka/report-data/v1", *FIELDS)
    assert report_data == hashlib.sha512(labelled).digest()
    for label in ((), (b"",), (b"ostraka/report-data/v2",)):
        assert report_data != hashlib.sha512(behind_lengths(*label, *FIELDS)).digest()

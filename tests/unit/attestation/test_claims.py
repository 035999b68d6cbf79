"""An enclave's identity: all that was measured of the code, and nothing of where it runs."""

from typing import Any

import pytest

from ostraka.attestation.claims import Claims

PCRS = {f"pcr{index}": bytes([index]) * 48 for index in (0, 1, 2, 3, 4, 8)}


def identity(kind, measurements, **more):
    settings: dict[str, Any] = {"report_data": b"", "debug": False} | more
    return Claims(kind, tuple(measurements.items()), **settings).code_id


@pytest.mark.parametrize("name", ["pcr3", "pcr4"])
def test_a_nitro_enclave_is_the_same_under_another_role_and_on_another_instance(name):
    assert identity("nitro", PCRS | {name: b"x" * 48}) == identity("nitro", PCRS)


@pytest.mark.parametrize("name", ["pcr0", "pcr1", "pcr2", "pcr8"])
def test_a_nitro_enclave_is_another_with_other_code(name):
    assert identity("nitro", PCRS | {name: b"x" * 48}) != identity("nitro", PCRS)


def test_only_of_nitro_are_measurements_left_out():
    assert identity("tdx", {"pcr3": b"a"}) != identity("tdx", {"pcr3": b"b"})


SGX = {"mrenclave": b"e" * 32, "mrsigner": b"s" * 32}
OTHERS = {
    "another kind": ("simulation", SGX),
    "another value": ("sgx", SGX | {"mrenclave": b"f" * 32}),
    "a value less": ("sgx", {"mrenclave": b"e" * 32}),
    "values under each other's names": ("sgx", {"mrenclave": b"s" * 32, "mrsigner": b"e" * 32}),
    "values cut elsewhere": ("sgx", {"mrenclave": b"e" * 32 + b"s", "mrsigner": b"s" * 31}),
}


@pytest.mark.parametrize("what", OTHERS)
def test_an_identity_is_of_all_that_was_measured(what):
    assert identity(*OTHERS[what]) != identity("sgx", SGX)


def test_an_identity_is_not_of_one_challenge():
    """What was asked, and what else a person may read, changes from one document to the next."""
    more = {"report_data": b"r" * 64, "facts": (("timestamp", "1"),)}
    assert identity("sgx", SGX, **more) == identity("sgx", SGX)

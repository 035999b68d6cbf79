from dataclasses import replace

import pytest

from ostraka.attestation.claims import Binding, Claims
from ostraka.attestation.verify import require_bound
from ostraka.errors import AttestationRefused, Refusal

EXPECTED = Binding(b"n" * 32, b"k" * 1216, b"r" * 32, b"c" * 32)
DATA = EXPECTED.report_data()
CLAIMS = Claims("sgx", (), report_data=DATA, debug=False)


def one_byte_off(at: int) -> bytes:
    return DATA[:at] + bytes([DATA[at] ^ 1]) + DATA[at + 1 :]


OTHERS = [one_byte_off(at) for at in range(64)] + [b"", DATA[:8], DATA[:32], DATA + b"\0"]


def test_evidence_is_bound_by_every_byte_of_its_report_data():
    """Evidence that differs in any one byte, or that has fewer or more, is about something else."""
    require_bound(CLAIMS, EXPECTED)
    for other in OTHERS:
        with pytest.raises(AttestationRefused) as caught:
            require_bound(replace(CLAIMS, report_data=other), EXPECTED)
        assert caught.value.reason == Refusal.BINDING

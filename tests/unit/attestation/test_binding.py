import hashlib

from ostraka.attestation.claims import Binding

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

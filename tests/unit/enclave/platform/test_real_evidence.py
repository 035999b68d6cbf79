"""Real evidence through the providers: it carries its report data as they expect, and verifies."""

import struct
import warnings
from datetime import timedelta
from pathlib import Path

from cryptography import x509

from ostraka.attestation import snp
from ostraka.attestation.snp import SnpPolicy, SnpTcb
from ostraka.enclave.platform.gramine import GramineProvider
from ostraka.enclave.platform.tsm import TsmProvider

VECTORS = Path(__file__).parents[3] / "vectors" / "evidence"

SGX_REPORT_DATA = slice(368, 432)
TDX_REPORT_DATA = slice(568, 632)
SNP_REPORT_DATA = slice(0x50, 0x90)
SNP_MEASUREMENT = slice(0x90, 0xC0)


def vector(name):
    return (VECTORS / name).read_bytes()


def test_sgx(tmp_path):
    quote = vector("dcap/sgx_quote")
    (tmp_path / "attestation_type").write_bytes(b"dcap")
    (tmp_path / "user_report_data").touch()
    (tmp_path / "quote").write_bytes(quote)
    evidence = GramineProvider(tmp_path).evidence(quote[SGX_REPORT_DATA])
    assert evidence.document == quote


def test_tdx(configfs):
    quote = vector("dcap/tdx_quote")
    files = configfs(report=lambda data: quote)
    evidence = TsmProvider("tdx", files.root, files).evidence(quote[TDX_REPORT_DATA])
    assert evidence.document == quote


def table(*certificates):
    """As a host hands them to its guests: GUID, offset and length of each, zeros, and the rest."""
    at = 24 * (len(certificates) + 1)
    entries = b""
    for number, certificate in enumerate(certificates, 1):
        entries += struct.pack("<16sII", bytes([number]) * 16, at, len(certificate))
        at += len(certificate)
    return entries + bytes(24) + b"".join(certificates)


def test_snp_verifies_with_the_certificates_that_the_host_brought(configfs):
    report, vcek = vector("snp/test-report.bin"), vector("snp/test-vcek.der")
    files = configfs(
        driver="sev_guest",
        report=lambda data: report,
        certificates=table(vcek, vector("snp/ask_ark_milan.pem")),
    )
    evidence = TsmProvider("snp", files.root, files).evidence(report[SNP_REPORT_DATA])
    claims = snp.verify(
        evidence,
        collateral={},
        policy=SnpPolicy(
            measurement=(report[SNP_MEASUREMENT],),
            min_tcb=SnpTcb(bootloader=3, tee=0, snp=8, microcode=115),
            allow=("smt",),
        ),
        now=day_after_issue(vcek),
        skew=0,
    )
    assert claims.report_data == report[SNP_REPORT_DATA]


def day_after_issue(certificate):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # AMD's serial number is 0
        parsed = x509.load_der_x509_certificate(certificate)
    return int((parsed.not_valid_before_utc + timedelta(days=1)).timestamp())

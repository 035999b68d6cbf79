from concurrent.futures import ThreadPoolExecutor

import pytest

from ostraka.enclave.platform.gramine import GramineKeys, GramineProvider
from ostraka.enclave.platform.interface import sealing_key
from ostraka.enclave.platform.linux import OS_FILES
from ostraka.errors import LocalProtocolError, PlatformError

REPORT_DATA = bytes(range(64))


def provider(files):
    return GramineProvider(files.root, files)


def test_evidence_is_a_quote_about_the_report_data(gramine):
    files = gramine()
    evidence = provider(files).evidence(REPORT_DATA)
    assert (evidence.kind, evidence.endorsements) == ("sgx", ())
    assert evidence.document == b"quote about " + REPORT_DATA
    assert files.written == [REPORT_DATA]


def test_threads_take_turns(gramine):
    """The files belong to the process, so two providers take turns, too."""
    files = gramine(slow=True)
    asked = [bytes([number]) * 64 for number in range(24)]
    providers = [provider(files), provider(files)]
    with ThreadPoolExecutor(4) as pool:
        answers = list(
            pool.map(
                lambda number: providers[number % 2].evidence(asked[number]), range(len(asked))
            )
        )
    assert files.overlaps == 0
    assert all(data in answer.document for data, answer in zip(asked, answers, strict=True))


def test_the_next_thread_is_not_locked_out_by_a_failure(gramine):
    files = gramine(quoting=False)
    with pytest.raises(PlatformError):
        provider(files).evidence(REPORT_DATA)
    files.quoting = True
    assert REPORT_DATA in provider(files).evidence(REPORT_DATA).document


def test_a_stale_quote_is_refused(gramine):
    """Some other code in this process wrote after us."""
    files = gramine()
    write = files.write
    files.write = lambda path, data: (write(path, data), write(path, bytes(64)))
    with pytest.raises(PlatformError, match="not about the report data"):
        provider(files).evidence(REPORT_DATA)


@pytest.mark.parametrize("kind", ["none", "epid", "", "DCAP", "dcap2"])
def test_any_other_attestation_type_is_refused(gramine, kind):
    files = gramine(kind=kind)
    with pytest.raises(PlatformError, match=rf"type is '{kind}': set sgx.remote_attestation"):
        provider(files).evidence(REPORT_DATA)
    assert not files.written


def test_gramine_direct_is_told_apart(gramine):
    files = gramine(kind=None, key=None)
    with pytest.raises(PlatformError, match="run under gramine-sgx"):
        provider(files).evidence(REPORT_DATA)
    with pytest.raises(PlatformError, match="run under gramine-sgx"):
        GramineKeys(files.root, files).key()


def test_a_quoting_service_that_does_not_answer(gramine):
    with pytest.raises(PlatformError, match=r"EACCES.*aesmd"):
        provider(gramine(quoting=False)).evidence(REPORT_DATA)


@pytest.mark.parametrize("length", [0, 32, 63, 65])
def test_report_data_has_64_bytes(gramine, length):
    files = gramine()
    with pytest.raises(LocalProtocolError):
        provider(files).evidence(bytes(length))
    assert not files.written


def test_real_files(tmp_path):
    (tmp_path / "attestation_type").write_bytes(b"dcap")
    (tmp_path / "user_report_data").write_bytes(bytes(64))
    (tmp_path / "quote").write_bytes(b"quote about " + REPORT_DATA)
    evidence = GramineProvider(tmp_path, OS_FILES).evidence(REPORT_DATA)
    assert (tmp_path / "user_report_data").read_bytes() == REPORT_DATA
    assert evidence.document == b"quote about " + REPORT_DATA


def test_the_sealing_key_is_of_this_code(gramine):
    files = gramine()
    key = GramineKeys(files.root, files).key()
    assert len(key) == 32
    assert key == GramineKeys(files.root, files).key()
    files.key = bytes(16)
    assert key != GramineKeys(files.root, files).key()


def test_the_signers_key_is_never_used(gramine):
    files = gramine()
    key = GramineKeys(files.root, files).key()
    files.key = b"everybody's key!"
    assert key != GramineKeys(files.root, files).key()
    assert "mrsigner" not in GramineKeys.name


def test_the_key_is_derived_under_a_label(gramine):
    files = gramine()
    expected = sealing_key(bytes(range(16)), b"ostraka/sealing-key/gramine-mrenclave/v1")
    assert GramineKeys(files.root, files).key() == expected


@pytest.mark.parametrize("secret", [b"", b"15 bytes only..", b"these are 17 byte"])
def test_a_sealing_key_of_another_length_is_refused_and_not_shown(gramine, secret):
    files = gramine(key=secret)
    with pytest.raises(PlatformError, match=f"has {len(secret)} bytes instead of 16") as caught:
        GramineKeys(files.root, files).key()
    assert not secret or secret.decode() not in str(caught.value)

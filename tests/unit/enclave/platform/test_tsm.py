import errno
from concurrent.futures import ThreadPoolExecutor

import pytest

from ostraka.enclave.platform.linux import OS_FILES
from ostraka.enclave.platform.tsm import TsmProvider, present_kind
from ostraka.errors import LocalProtocolError, PlatformError

REPORT_DATA = bytes(range(64))


def provider(files, kind="tdx"):
    return TsmProvider(kind, files.root, files)


def test_evidence_is_about_the_report_data(configfs):
    evidence = provider(configfs()).evidence(REPORT_DATA)
    assert evidence.kind == "tdx"
    assert evidence.document == b"report about " + REPORT_DATA + b", signed"
    assert evidence.endorsements == ()


def test_snp_brings_the_certificates_of_the_host(configfs):
    files = configfs(driver="sev_guest", certificates=b"table")
    evidence = provider(files, "snp").evidence(REPORT_DATA)
    assert (evidence.kind, evidence.endorsements) == ("snp", (b"table",))


def test_a_host_may_bring_no_certificates(configfs):
    files = configfs(driver="sev_guest")
    assert provider(files, "snp").evidence(REPORT_DATA).endorsements == ()


def test_an_entry_is_written_once(configfs):
    writes = []
    files = configfs(before=lambda operation, name, _: writes.append((operation, name)))
    provider(files).evidence(REPORT_DATA)
    assert [name for operation, name in writes if operation == "write"] == ["inblob"]


def test_every_request_has_a_fresh_entry_and_leaves_none(configfs):
    files = configfs()
    for _ in range(3):
        provider(files).evidence(REPORT_DATA)
    assert len(set(files.made)) == 3
    assert not files.entries


def test_many_threads_ask_at_once(configfs):
    files = configfs()
    asked = [bytes([number]) * 64 for number in range(40)]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(provider(files).evidence, asked))
    assert all(data in answer.document for data, answer in zip(asked, answers, strict=True))
    assert not files.entries


@pytest.mark.parametrize("length", [0, 63, 65])
def test_report_data_has_64_bytes(configfs, length):
    files = configfs()
    with pytest.raises(LocalProtocolError):
        provider(files).evidence(bytes(length))
    assert not files.made


def racing(files, times):
    """Another writer, who changes an entry after our write and before our read."""
    left = [times]

    def before(operation, name, entry):
        if (operation, name) == ("read", "outblob") and left[0]:
            left[0] -= 1
            files.take(entry, b"another's report data")

    return before


def test_another_writer_is_noticed_and_we_ask_again(configfs):
    files = configfs()
    files.before = racing(files, times=2)
    assert REPORT_DATA in provider(files).evidence(REPORT_DATA).document
    assert len(files.made) == 3
    assert not files.entries


def test_another_writer_who_does_not_stop_is_an_error(configfs):
    files = configfs()
    files.before = racing(files, times=1000)
    with pytest.raises(PlatformError, match="3 times in a row"):
        provider(files).evidence(REPORT_DATA)
    assert not files.entries


def test_another_writer_who_writes_the_same_is_noticed_too(configfs):
    """The count decides and not the report: what was read may be older than the last write."""
    files = configfs()

    def before(operation, name, entry):
        if (operation, name) == ("read", "generation"):
            files.take(entry, REPORT_DATA)

    files.before = before
    with pytest.raises(PlatformError, match="another process wrote"):
        provider(files).evidence(REPORT_DATA)


def test_a_write_that_the_kernel_ignores_is_an_error(configfs):
    """configfs takes a blob when its file is closed, where no error can be reported."""
    files = configfs(ignoring=True)
    with pytest.raises(PlatformError, match="did not take the report data"):
        provider(files).evidence(REPORT_DATA)
    assert not files.entries


def test_a_report_about_something_else_is_refused(configfs):
    files = configfs()
    files.take = lambda entry, data: type(files).take(files, entry, bytes(64))
    with pytest.raises(PlatformError, match="not about the report data"):
        provider(files).evidence(REPORT_DATA)


@pytest.mark.parametrize(
    ("operation", "name"),
    [
        ("mkdir", ""),
        ("read", "provider"),
        ("write", "inblob"),
        ("read", "outblob"),
        ("read", "auxblob"),
        ("read", "generation"),
    ],
)
def test_no_entry_is_left_after_a_failure(configfs, fail, operation, name):
    files = configfs(driver="sev_guest", before=fail(operation, name, errno.EIO))
    with pytest.raises(PlatformError, match="EIO"):
        provider(files, "snp").evidence(REPORT_DATA)
    assert not files.entries


def test_no_entry_is_left_after_an_interruption(configfs):
    def interrupt(operation, name, _):
        if name == "outblob":
            raise KeyboardInterrupt

    files = configfs(before=interrupt)
    with pytest.raises(KeyboardInterrupt):
        provider(files).evidence(REPORT_DATA)
    assert not files.entries


def test_an_entry_that_cannot_be_removed_is_an_error(configfs, fail):
    files = configfs(before=fail("rmdir", "", errno.EBUSY))
    with pytest.raises(PlatformError, match="removing our entry"):
        provider(files).evidence(REPORT_DATA)


ADVICE: dict[str, tuple[dict, str, str]] = {
    "no driver": ({"driver": None}, "ENXIO", "load tdx_guest or sev-guest"),
    "no configfs": ({}, "ENOENT", "mount configfs"),
    "not root": ({"privileged": False}, "EACCES", "run as root"),
    "a quote that the host never finished": ({"report_error": errno.EBUSY}, "EBUSY", "try again"),
    "a report that is not ready": ({"report_error": errno.EAGAIN}, "EAGAIN", "try again"),
    "a silent host": ({"report_error": errno.ETIMEDOUT}, "ETIMEDOUT", "operator of the host"),
    "a firmware that refuses": ({"report_error": errno.EIO}, "EIO", "the kernel's log"),
    "a driver that went away": ({"report_error": errno.ENOTTY}, "ENOTTY", "load tdx_guest"),
    "another privilege level": ({"report_error": errno.EINVAL}, "EINVAL", "privilege level"),
}


@pytest.mark.parametrize("what", ADVICE)
def test_an_error_says_what_to_do(configfs, what):
    state, code, advice = ADVICE[what]
    files = configfs(**state)
    root = files.root if what != "no configfs" else files.root / "elsewhere"
    with pytest.raises(PlatformError, match=rf"\({code}\).*{advice}"):
        TsmProvider("tdx", root, files).evidence(REPORT_DATA)
    assert not files.entries


def test_an_error_without_advice_still_has_its_name(configfs):
    files = configfs(report_error=errno.ENOMEM)
    with pytest.raises(PlatformError, match="ENOMEM"):
        provider(files).evidence(REPORT_DATA)


def test_the_machine_must_be_of_the_kind_that_was_detected(configfs):
    files = configfs(driver="sev_guest")
    with pytest.raises(PlatformError, match="'snp', not 'tdx'"):
        provider(files, "tdx").evidence(REPORT_DATA)
    assert not files.entries


def test_another_driver_is_refused(configfs):
    files = configfs(driver="arm_cca_guest")
    with pytest.raises(PlatformError, match="'arm_cca_guest' are not supported"):
        present_kind(files.root, files)
    with pytest.raises(PlatformError, match="'arm_cca_guest' are not supported"):
        provider(files).evidence(REPORT_DATA)
    assert not files.entries


@pytest.mark.parametrize("text", [b"", b"one\n", b"-1\n", b"0x1\n"])
def test_a_count_that_is_no_number_is_an_error(configfs, text):
    files = configfs()
    read = files.read
    files.read = lambda path: text if path.name == "generation" else read(path)
    with pytest.raises(PlatformError, match="no number"):
        provider(files).evidence(REPORT_DATA)
    assert not files.entries


@pytest.mark.parametrize(
    ("driver", "kind"), [("tdx_guest", "tdx"), ("sev_guest", "snp"), (None, None)]
)
def test_the_kind_is_asked_of_the_kernel(configfs, driver, kind):
    files = configfs(driver=driver)
    assert present_kind(files.root, files) == kind
    assert not files.entries


def test_without_the_folder_there_is_no_kind(configfs, tmp_path):
    assert present_kind(tmp_path / "absent") is None
    assert present_kind(configfs().root / "absent", configfs()) is None


def test_a_folder_that_we_may_not_use_is_not_taken_for_none(configfs):
    files = configfs(privileged=False)
    with pytest.raises(PlatformError, match="run as root"):
        present_kind(files.root, files)


def test_an_ordinary_folder_is_no_platform_and_stays_as_it_was(tmp_path):
    with pytest.raises(PlatformError, match="ENOENT"):
        TsmProvider("tdx", tmp_path, OS_FILES).evidence(REPORT_DATA)
    assert not list(tmp_path.iterdir())


def test_the_fake_removes_by_rmdir_alone(configfs):
    files = configfs()
    files.mkdir(files.root / "entry")
    for path in (files.root / "entry" / "inblob", files.root / "entry"):
        with pytest.raises(PermissionError):
            files.unlink(path)
    with pytest.raises(NotADirectoryError):
        files.rmdir(files.root / "entry" / "inblob")
    files.rmdir(files.root / "entry")

import hashlib
import json
import stat
import subprocess
import sys
from dataclasses import replace

import pytest

from ostraka.attestation.simulation import UnsafeSimulatedPlatform
from ostraka.enclave.platform.simulated import (
    PLATFORM_FILE,
    UnsafeSimulatedProvider,
    load_platform,
    save_platform,
)
from ostraka.errors import ConfigError, LocalProtocolError

PLATFORM = UnsafeSimulatedPlatform(b"\x07" * 32, issued=1_800_000_000, lifetime=86_400)
CODE = hashlib.sha256(b"code").digest()
REPORT_DATA = bytes(range(64))


@pytest.fixture
def path(tmp_path):
    (tmp_path / PLATFORM_FILE).parent.mkdir()
    return tmp_path / PLATFORM_FILE


def test_evidence_says_that_it_is_simulated():
    evidence = UnsafeSimulatedProvider(PLATFORM, CODE).evidence(REPORT_DATA)
    assert evidence.kind == "simulation"
    assert evidence.endorsements == (PLATFORM.root_der,)
    assert b"SIMULATION" in evidence.endorsements[0]
    assert REPORT_DATA in evidence.document
    assert CODE in evidence.document


@pytest.mark.parametrize("length", [0, 63, 65])
def test_report_data_has_64_bytes(length):
    with pytest.raises(LocalProtocolError):
        UnsafeSimulatedProvider(PLATFORM, CODE).evidence(bytes(length))


def test_a_platform_stays_itself(path):
    save_platform(path, PLATFORM)
    loaded = load_platform(path)
    assert loaded == PLATFORM
    assert loaded.root_der == PLATFORM.root_der


def test_the_file_says_first_what_it_is(path):
    save_platform(path, PLATFORM)
    assert next(iter(json.loads(path.read_text()))) == "SIMULATION"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "simulation" in PLATFORM_FILE


def test_a_platform_is_never_written_over(path):
    save_platform(path, PLATFORM)
    with pytest.raises(ConfigError, match="EEXIST"):
        save_platform(path, replace(PLATFORM, seed=b"\x08" * 32))
    assert load_platform(path) == PLATFORM


def test_a_file_that_others_can_read_is_refused(path):
    save_platform(path, PLATFORM)
    path.chmod(0o640)
    with pytest.raises(ConfigError, match="chmod 600"):
        load_platform(path)


def test_none_is_made_by_itself(path):
    with pytest.raises(ConfigError, match="ENOENT"):
        load_platform(path)


CHANGES = {
    "no word of SIMULATION": {"SIMULATION": None},
    "another version": {"version": "ostraka/simulated-platform/v2"},
    "a short seed": {"seed": "07" * 31},
    "a seed that is not hex": {"seed": "zz" * 32},
    "no seed": {"seed": None},
    "a time that is text": {"issued": "now"},
    "no lifetime": {"lifetime": None},
}


@pytest.mark.parametrize("what", CHANGES)
def test_any_other_file_is_refused_and_not_shown(path, what):
    save_platform(path, PLATFORM)
    path.write_text(json.dumps(json.loads(path.read_text()) | CHANGES[what]))
    with pytest.raises(ConfigError, match="holds no simulated platform") as caught:
        load_platform(path)
    assert "0707" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[]", "7", "[" * 60_000])
def test_a_file_that_is_not_even_json_of_ours_is_refused(path, text):
    save_platform(path, PLATFORM)
    path.write_text(text)
    with pytest.raises(ConfigError, match="holds no simulated platform"):
        load_platform(path)


def test_a_real_platform_never_loads_the_simulation():
    code = "import sys, ostraka.enclave.platform; print([m for m in sys.modules if 'simul' in m])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert done.stdout.strip() == "[]"

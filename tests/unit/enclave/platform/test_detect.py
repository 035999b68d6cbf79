from pathlib import Path

import pytest

from ostraka.enclave.platform.choose import detect
from ostraka.enclave.platform.gramine import GramineProvider
from ostraka.enclave.platform.nitro import NitroProvider
from ostraka.enclave.platform.tsm import TsmProvider
from ostraka.errors import ConfigError, PlatformError

GRAMINE = Path("/attestation")
NSM = Path("/nsm")


@pytest.fixture
def machine(configfs):
    """detect() on a machine with these TEEs."""

    def detected(*present, kind=None, privileged=True):
        drivers = {"tdx": "tdx_guest", "snp": "sev_guest"}
        driver = next((drivers[each] for each in present if each in drivers), None)
        files = configfs(driver=driver, privileged=privileged)
        files.also |= {GRAMINE / "attestation_type"} if "sgx" in present else set()
        files.also |= {NSM} if "nitro" in present else set()
        try:
            return detect(kind, gramine=GRAMINE, tsm=files.root, nsm=NSM, files=files)
        finally:
            assert not files.entries

    return detected


PROVIDERS: dict[str, type] = {
    "sgx": GramineProvider,
    "tdx": TsmProvider,
    "snp": TsmProvider,
    "nitro": NitroProvider,
}


@pytest.mark.parametrize("kind", PROVIDERS)
def test_the_one_that_is_there_is_found(machine, kind):
    for wanted in (None, kind):
        provider = machine(kind, kind=wanted)
        assert provider.kind == kind
        assert isinstance(provider, PROVIDERS[kind])


def test_a_machine_without_any_is_told_what_was_looked_for(machine):
    with pytest.raises(PlatformError) as caught:
        machine()
    for word in (str(GRAMINE), "/config/tsm/report", str(NSM), "--unsafe-simulation"):
        assert word in str(caught.value)


def test_this_machine_is_never_simulated_by_itself(tmp_path):
    """The real file calls, on folders where nothing is."""
    with pytest.raises(PlatformError, match="no TEE was found"):
        detect(gramine=tmp_path / "a", tsm=tmp_path / "b", nsm=tmp_path / "c")


@pytest.mark.parametrize("present", [("sgx", "tdx"), ("snp", "nitro"), ("sgx", "snp", "nitro")])
def test_several_are_not_chosen_from(machine, present):
    with pytest.raises(PlatformError, match=rf"several.*{', '.join(present)}.*kind="):
        machine(*present)
    for kind in present:
        assert machine(*present, kind=kind).kind == kind


@pytest.mark.parametrize("kind", PROVIDERS)
def test_another_kind_does_not_stand_in(machine, kind):
    others = [each for each in PROVIDERS if each != kind and {each, kind} != {"tdx", "snp"}]
    with pytest.raises(PlatformError, match=f"no TEE was found of kind '{kind}'"):
        machine(*others, kind=kind)


def test_tdx_does_not_stand_in_for_snp(machine):
    with pytest.raises(PlatformError, match="no TEE was found of kind 'snp'"):
        machine("tdx", kind="snp")


@pytest.mark.parametrize("kind", ["simulation", "sev", "", "SGX"])
def test_nothing_else_can_be_asked_for(machine, kind):
    with pytest.raises(ConfigError, match="--unsafe-simulation"):
        machine("sgx", kind=kind)


def test_a_machine_that_may_be_one_is_not_passed_over(machine):
    """Not root: whether there is a TEE cannot be told, so it is not said that there is none."""
    with pytest.raises(PlatformError, match="run as root"):
        machine("tdx", privileged=False)
    assert machine("sgx", kind="sgx", privileged=False).kind == "sgx"

from dataclasses import replace
from pathlib import Path

import pytest

from ostraka.enclave.platform import choose
from ostraka.enclave.platform.choose import SOURCES, Source, detect
from ostraka.enclave.platform.gramine import GramineProvider
from ostraka.enclave.platform.nitro import NitroProvider
from ostraka.enclave.platform.tsm import TsmProvider
from ostraka.errors import ConfigError, PlatformError

GRAMINE = Path("/attestation")
NSM = Path("/nsm")


def at(gramine, tsm, nsm):
    """The table, with the TEEs at these places."""
    places = {"sgx": gramine / "attestation_type", "tdx": tsm, "snp": tsm, "nitro": nsm}
    return tuple(replace(source, place=places[source.kind]) for source in SOURCES)


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
            return detect(kind, sources=at(GRAMINE, files.root, NSM), files=files)
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


def test_every_place_is_named_once(machine):
    with pytest.raises(PlatformError) as caught:
        machine()
    assert str(caught.value).endswith(
        "looked for /attestation/attestation_type (SGX under Gramine), a guest driver behind "
        "/config/tsm/report (TDX, SEV-SNP; Linux 6.7 or later) and /nsm (Nitro); "
        "to run without one, ask for simulation by name: --unsafe-simulation"
    )


def test_this_machine_is_never_simulated_by_itself(tmp_path):
    """The real file calls, on folders where nothing is."""
    with pytest.raises(PlatformError, match="no TEE was found"):
        detect(sources=at(tmp_path / "a", tmp_path / "b", tmp_path / "c"))


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


class Quill:
    """A TEE that only this test knows, and its sealing keys."""

    kind = name = "quill"

    def __init__(self, place=None):
        self.place = place

    def key(self):
        return b"q" * 32

    def evidence(self, report_data):
        raise AssertionError


def test_a_new_tee_is_one_row(monkeypatch, tmp_path):
    def find(place, files):
        return Quill(place) if files.exists(place) else None

    row = Source("quill", tmp_path / "quill", "{} (Quill)", find, Quill)
    monkeypatch.setattr(choose, "SOURCES", (row,))
    with pytest.raises(PlatformError, match=r"and .*/quill \(Quill\)"):
        detect(sources=(*at(tmp_path, tmp_path / "b", tmp_path / "c"), row))
    row.place.touch()
    provider = detect("quill", sources=(*SOURCES, row))
    assert isinstance(provider, Quill)
    assert provider.place == row.place
    assert isinstance(choose._keys(provider, (), None), Quill)


@pytest.mark.parametrize("kind", ["tdx", "nitro"])
def test_a_tee_without_a_key_of_its_own_needs_a_broker(machine, kind):
    provider = machine(kind)
    with pytest.raises(ConfigError, match=f"{kind} gives no sealing key: .*--key-release"):
        choose._keys(provider, (), None)
    assert choose._keys(provider, ("ask",), b"b" * 32).name == "key release"


@pytest.mark.parametrize(("kind", "name"), [("sgx", "gramine"), ("snp", "sev-guest")])
def test_a_tee_with_a_key_of_its_own_asks_no_broker(machine, kind, name):
    keys = choose._keys(machine(kind), ("ask",), b"b" * 32)
    assert name in keys.name

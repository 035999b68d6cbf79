"""What `ostraka init` makes: it is complete, private where it must be, and works as it is."""

import re
import stat
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from ostraka import federation_file
from ostraka.attestation import policy_file
from ostraka.attestation.claims import Binding
from ostraka.attestation.policy import Policy
from ostraka.attestation.snp import SnpPolicy
from ostraka.attestation.verify import (
    Circumstances,
    require_bound,
    verify_charter,
    verify_evidence,
)
from ostraka.cli.federation_folder import Plan, create
from ostraka.config import MASKINGS
from ostraka.core import rules
from ostraka.enclave import measurement
from ostraka.enclave.platform.simulated import UnsafeSimulatedProvider, load_platform
from ostraka.errors import AttestationRefused, ConfigError, Refusal
from ostraka.files import read_identity
from ostraka.messages import vector_digest
from ostraka.transport import collateral

NOW = int(time.time())


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "federation"
    create(path, Plan(), now=NOW)
    return path


def read_policy(folder) -> Policy:
    return policy_file.parse((folder / "policy.toml").read_text(), "policy.toml")


def test_everything_is_there_and_nothing_else(folder):
    keys = ["authority", *(f"client-{i}" for i in range(1, 13)), "worker-1", "worker-2"]
    keys.append("observer")
    expected = {f"keys/{name}.key" for name in keys} | {
        ".gitignore",
        "federation.toml",
        "federation.charter",
        "policy.toml",
        "model.safetensors",
        "simulation/platform.json",
        "simulation/collateral.json",
    }
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert files == expected
    assert [path.name for path in folder.parent.iterdir()] == ["federation"]


def test_secrets_are_for_their_owner_alone(folder):
    for path in (*folder.glob("keys/*"), folder / "simulation" / "platform.json"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert stat.S_IMODE((folder / "keys").stat().st_mode) == 0o700


def test_every_key_is_the_one_that_is_enrolled(folder):
    federation = federation_file.load(folder / "federation.toml").federation()
    for member in federation.clients + federation.workers:
        assert read_identity(folder / "keys" / f"{member.name}.key").public == member.key
    assert read_identity(folder / "keys" / "authority.key").public == federation.authority


def test_clients_accept_the_charter_and_the_simulated_enclave(folder):
    policy = read_policy(folder)
    charter = federation_file.load_charter(folder / "federation.charter")
    federation = verify_charter(charter, policy)
    assert federation == federation_file.load(folder / "federation.toml").federation()

    platform = load_platform(folder / "simulation" / "platform.json")
    provider = UnsafeSimulatedProvider(platform, measurement.measure().digest)
    binding = Binding(bytes(32), b"key", bytes(32), federation.digest())
    evidence = provider.evidence(binding.report_data())
    circumstances = Circumstances(
        now=NOW,
        collateral=collateral.for_evidence(evidence, policy, beside=folder / "policy.toml"),
        unsafe_simulation=True,
    )
    require_bound(verify_evidence(evidence, policy, circumstances), binding)

    other = UnsafeSimulatedProvider(platform, bytes(32)).evidence(binding.report_data())
    with pytest.raises(AttestationRefused) as refused:
        verify_evidence(other, policy, circumstances)
    assert refused.value.reason is Refusal.MEASUREMENT


def test_the_policy_says_what_simulation_means(folder):
    text = (folder / "policy.toml").read_text()
    before, _ = text.split("unsafe_simulation = true")
    assert "the host of the enclave can read all\n# updates" in before


def test_no_hand_over_is_agreed_to_yet(folder):
    for name in ("policy.toml", "federation.toml"):
        assert "\nsuccessors = []  " in (folder / name).read_text()
    assert read_policy(folder).federation.successors == ()


def test_without_simulation_nothing_is_accepted_yet(tmp_path):
    create(tmp_path / "f", Plan(simulation=False), now=NOW)
    assert not (tmp_path / "f" / "simulation").exists()
    policy = read_policy(tmp_path / "f")
    assert (policy.evidence, policy.unsafe_simulation) == ((), False)
    assert "insecure" not in (tmp_path / "f" / "policy.toml").read_text()


def test_the_sections_in_the_policy_s_comments_are_sections_that_can_be_used(folder):
    text = (folder / "policy.toml").read_text()
    used = re.sub(r"(?m)^# (?=\[|\w+ = )", "", text)
    assert used.count("\n[") == text.count("\n[") + 4
    listed = policy_file.parse(used, "p").of(SnpPolicy)
    assert (listed.certificates, listed.crl) == ("snp-certificates.pem", "snp.crl")
    assert listed.min_tcb is None, "nobody states a version by taking lines out of a comment"


def test_the_example_model_is_small_and_starts_at_zero(folder):
    manifest, model = federation_file.load(folder / "federation.toml").initial_model()
    assert [tensor.name for tensor in manifest.tensors] == ["bias", "weight"]
    assert not model.any()


def test_a_model_of_one_s_own_is_copied(tmp_path):
    weights = np.arange(6, dtype="f4").reshape(2, 3)
    save_file({"w": weights}, tmp_path / "mine.safetensors")
    create(tmp_path / "f", Plan(model=tmp_path / "mine.safetensors"), now=NOW)
    (tmp_path / "mine.safetensors").unlink()
    file = federation_file.load(tmp_path / "f" / "federation.toml")
    manifest, model = file.initial_model()
    assert manifest.tensors[0].shape == (2, 3)
    assert model.tolist() == [0, 1, 2, 3, 4, 5]
    charter = federation_file.load_charter(tmp_path / "f" / "federation.charter")
    assert charter.federation.initial == vector_digest(model)


def test_a_dimension_needs_no_file(tmp_path):
    file = create(tmp_path / "f", Plan(dimension=5000), now=NOW)
    assert file.manifest.dimension == 5000
    assert not (tmp_path / "f" / "model.safetensors").exists()


@pytest.mark.parametrize("masking", MASKINGS)
@pytest.mark.parametrize("workers", [2, 3, 9])
def test_any_masking_and_number_of_workers_makes_a_valid_folder(tmp_path, masking, workers):
    plan = Plan(clients=5, f=1, masking=masking, workers=workers, dimension=100)
    federation = create(tmp_path / "f", plan, now=NOW).federation()
    assert federation.terms.masking == masking
    assert len(federation.workers) == workers
    assert read_policy(tmp_path / "f").federation.maskings == (masking,)


COMPOSITIONS = ["arc+nnm+geometric-median", "multi-krum", "arc+caf", "fltrust(root=client-2)"]


@pytest.mark.parametrize("text", COMPOSITIONS)
def test_the_policy_pins_the_rule_that_the_terms_name(tmp_path, text):
    plan = Plan(clients=5, f=1, dimension=100, composition=rules.parse(text))
    federation = create(tmp_path / "f", plan, now=NOW).federation()
    assert str(federation.terms.composition) == text
    pinned = read_policy(tmp_path / "f").federation
    assert (pinned.rules, pinned.disclose_values) == ((text,), False)
    charter = federation_file.load_charter(tmp_path / "f" / "federation.charter")
    assert verify_charter(charter, read_policy(tmp_path / "f")) == federation


def test_disclosed_values_are_in_the_terms_and_in_the_policy(tmp_path):
    plan = Plan(composition=rules.parse("median"), disclose_values=True)
    federation = create(tmp_path / "f", plan, now=NOW).federation()
    assert federation.terms.disclose_values
    assert read_policy(tmp_path / "f").federation.disclose_values


def test_an_empty_folder_is_used_and_another_is_not_touched(tmp_path):
    (tmp_path / "empty").mkdir()
    create(tmp_path / "empty", Plan(), now=NOW)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("x")
    with pytest.raises(ConfigError, match="not empty"):
        create(tmp_path / "full", Plan(), now=NOW)
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["mine"]
    with pytest.raises(ConfigError, match="is a file"):
        create(tmp_path / "full" / "mine", Plan(), now=NOW)


IMPOSSIBLE = {
    "too few clients": ({"clients": 7}, "needs at least 8 clients; got n=7, f=3"),
    "too few clients for another rule": (
        {"composition": rules.parse("trimmed-mean"), "clients": 10},
        "trimmed-mean needs at least 11 clients; got n=10, f=3",
    ),
    "a root that is not enrolled": (
        {"composition": rules.parse("fltrust(root=client-13)")},
        "root is 'client-13', and no client of that name is enrolled",
    ),
    "values of single clients": (
        {"composition": rules.parse("median")},
        "median publishes single values of single clients",
    ),
    "no dimension": ({"dimension": 0}, "an update has 1 to"),
    "a masking that is not there": ({"masking": "rot13"}, "'rot13'"),
    "one worker": ({"workers": 1}, "ask for 2 workers; 1 are enrolled"),
    "workers below zero": ({"workers": -1}, "must be at least 0; got 12 and -1"),
    "two models": ({"dimension": 3, "model": Path("m")}, "not from both"),
    "a model that is not there": ({"model": Path("no.safetensors")}, "No such file"),
}


@pytest.mark.parametrize(("changes", "message"), IMPOSSIBLE.values(), ids=IMPOSSIBLE.keys())
def test_what_cannot_work_leaves_nothing_behind(changes, message, tmp_path):
    with pytest.raises(ConfigError, match=re.escape(message)) as refused:
        create(tmp_path / "f", Plan(**changes), now=NOW)
    assert ".partial" not in str(refused.value), "a file that is gone again helps nobody"
    assert list(tmp_path.iterdir()) == []


def test_a_failure_half_way_leaves_nothing_behind(tmp_path):
    def broken(size):
        if list(tmp_path.rglob("client-3.key")):
            raise OSError(28, "No space left on device")
        return bytes([len(list(tmp_path.rglob("*.key")))]) * size

    with pytest.raises(ConfigError, match="No space left"):
        create(tmp_path / "f", Plan(), now=NOW, entropy=broken)
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_explained(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be made"):
        create(tmp_path / "file" / "f", Plan(), now=NOW)


def test_the_federation_is_named_for_its_folder_if_that_is_a_name(tmp_path):
    assert create(tmp_path / "hospital-net", Plan(), now=NOW).about.name == "hospital-net"
    assert create(tmp_path / 'a "b"\n', Plan(), now=NOW).about.name == "federation"

"""A demo's federation: its settings are in its file, and they are signed."""

import pytest

from ostraka import federation_file
from ostraka.cli.federation_folder import Plan
from ostraka.errors import ConfigError, LocalProtocolError
from ostraka_lab.deployment import found

PLAN = Plan(clients=5, f=1, dimension=50)


def test_settings_are_in_force_and_signed(tmp_path):
    address = found(tmp_path / "demo", PLAN, count=3, quorum=5, distances="inside")
    file = federation_file.load(tmp_path / "demo" / "federation.toml")
    assert (file.rounds.count, file.quorum) == (3, 5)
    assert file.terms.distances == "inside"
    assert file.terms.disclose_selection
    assert file.enclave.listen == address
    charter = federation_file.load_charter(federation_file.charter_path(file.path))
    federation_file.require_signed(file, charter)


def test_a_setting_that_does_not_exist_is_our_mistake(tmp_path):
    with pytest.raises(LocalProtocolError, match="0 lines for 'colour'"):
        found(tmp_path / "demo", PLAN, colour="red")


def test_what_is_in_a_folder_is_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(ConfigError, match="is not empty"):
        found(tmp_path, PLAN)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]

"""What version 0.1 left on disk is refused with what to do, and stays as it is."""

import re
import shutil
import time
from pathlib import Path

import pytest

import ostraka
from ostraka import federation_file
from ostraka.carried.node_state import FileNotebook
from ostraka.cli.federation_folder import Plan, create
from ostraka.client.memory import MemoryFile
from ostraka.crypto.sealing import Sealer
from ostraka.enclave.__main__ import main
from ostraka.enclave.storage.state import EnclaveState
from ostraka.encoding import pack
from ostraka.errors import ConfigError, StateError
from ostraka.files import read_policy

OLD = Path(__file__).parents[1] / "vectors" / "version-0.1"
SEALER = Sealer(b"k" * 32, b"i" * 32)


@pytest.fixture
def old(tmp_path):
    """A copy that a test may spoil."""
    return Path(shutil.copytree(OLD, tmp_path / "old"))


def contents(folder):
    return {
        path.relative_to(folder): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != "lock"
    }


def refused(error, folder, message):
    """Expects this error, and that nothing in the folder has changed then."""
    before = contents(folder)

    class Expectation:
        def __enter__(self):
            self.raised = pytest.raises(error, match=message)
            self.raised.__enter__()

        def __exit__(self, *what):
            assert contents(folder) == before
            return self.raised.__exit__(*what)

    return Expectation()


def test_its_federation_file_is_refused_with_the_line_and_the_new_table(old):
    path = old / "federation.toml"
    line = path.read_text().splitlines().index("[rules]") + 1
    message = rf"federation\.toml, line {line}: version 0\.1's \[rules\] is \[terms\] now: rename"
    with refused(ConfigError, old, message):
        federation_file.load(path)


def test_its_federation_file_is_read_when_the_table_is_renamed_and_it_has_an_id(old):
    path = old / "federation.toml"
    path.write_text(path.read_text().replace("[rules]", "[terms]"))
    with refused(ConfigError, old, r"federation\.id is missing: 32 random bytes"):
        federation_file.load(path)
    path.write_text(path.read_text().replace("revision = 1", f'revision = 1\nid = "{"ab" * 32}"'))
    assert len(federation_file.load(path).federation().clients) == 3


def test_its_charter_is_refused(old):
    with refused(ConfigError, old, r"federation\.charter is a charter of version 0\.1"):
        federation_file.load_charter(old / "federation.charter")


def test_its_policy_is_refused_with_the_new_name(old):
    with refused(ConfigError, old, "unsafe_simulation"):
        read_policy(old / "policy.toml")


def test_its_state_is_refused(old):
    with refused(StateError, old, r"holds the state of version 0\.1, which this version cannot"):
        EnclaveState.open(old / "state", SEALER)


@pytest.mark.parametrize("name", ["ledger", "identity.sealed", "model-00000000.sealed"])
def test_what_is_left_of_its_state_is_refused(old, name):
    """Not taken for a folder that is fresh, nor for one that is damaged."""
    for path in (old / "state").iterdir():
        if path.name != name:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    (old / "state" / "begun.partial").write_bytes(b"begun")
    with refused(StateError, old, r"state: holds the state of version 0\.1"):
        EnclaveState.open(old / "state", SEALER)


def test_an_enclave_does_not_start_on_its_state(old, tmp_path, monkeypatch, capsys):
    create(tmp_path / "new", Plan(clients=3, f=0, dimension=3), now=int(time.time()) - 60)
    shutil.copytree(old / "state", tmp_path / "new" / "state")
    before = contents(tmp_path / "new" / "state")
    monkeypatch.setattr("ostraka.enclave.hardening.harden", lambda **_: [])
    config = str(tmp_path / "new" / "federation.toml")
    assert main(["run", "--config", config, "--unsafe-simulation"]) == 1
    told = capsys.readouterr().err.splitlines()[-1]
    assert re.match(r"ostraka: .*new/state: holds the state of version 0\.1", told)
    assert contents(tmp_path / "new" / "state") == before


def test_its_client_s_memory_is_refused(old):
    message = r"client-1\.memory: is a memory of an older version, which this version cannot read"
    with refused(StateError, old, message):
        MemoryFile(old / "client-1.memory", "client-1").load()


def test_a_client_does_not_begin_on_its_memory(old, tmp_path):
    plan = Plan(clients=3, f=0, dimension=3)
    made = create(tmp_path / "new", plan, now=int(time.time()) - 60)
    key = tmp_path / "new" / "keys" / "client-1.key"
    memory = MemoryFile.beside(key, "client-1", made.about.id)
    shutil.copy(old / "client-1.memory", memory.path)
    with refused(StateError, tmp_path / "new", "is a memory of an older version"):
        ostraka.Client(
            "127.0.0.1:1",
            name="client-1",
            key=key,
            policy=tmp_path / "new" / "policy.toml",
            unsafe_simulation=True,
        ).fetch()


def test_a_node_s_joins_are_refused_before_a_round_even_without_the_memory(tmp_path):
    memory = MemoryFile(tmp_path / "a.memory", "a")
    joins = tmp_path / "a.memory.joins"
    joins.write_bytes(pack(b"ostraka/flower-joins/v1") + bytes(40))
    with refused(StateError, tmp_path, r"of version 0\.1.*together with the memory, .*a\.memory"):
        FileNotebook(memory).load()

"""`ostraka enclave migrate`: from one folder to another, on one machine."""

import json
import re
import shlex
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from ostraka import federation_file
from ostraka.cli import enclave_migrate
from ostraka.cli.enclave import platform_for
from ostraka.cli.federation_folder import Plan, create
from ostraka.config import succession
from ostraka.enclave.service import open_state
from ostraka.errors import AttestationRefused, ConfigError, StateError
from ostraka.federation_file import charter_path
from ostraka.files import read_identity

COMMANDS: dict[str, Callable[..., None]] = {
    "request": enclave_migrate.request,
    "export": enclave_migrate.export,
    "import": enclave_migrate.take_over,
}
OLD = "--config old/federation.toml --unsafe-simulate --json"
NEW = "--config new/federation.toml --unsafe-simulate --json"
POLICY = "--policy old/policy.toml"


def invoke(line):
    app = typer.Typer(rich_markup_mode=None)
    for name, command in COMMANDS.items():
        app.command(name)(command)
    result = CliRunner().invoke(app, shlex.split(line))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result


def run(line):
    return json.loads(invoke(line).stdout.splitlines()[-1])


def identity_of(folder):
    return platform_for((folder / "federation.toml").resolve(), True, None, None).code_id


def opened(folder):
    config = (folder / "federation.toml").resolve()
    platform = platform_for(config, True, None, None)
    return open_state(federation_file.load(config), config, platform)


def ask(out="request.bin"):
    """The new enclave's request, to follow the old one."""
    with opened(Path("old")) as state:
        key = state.public.hex()
    return run(f"request --from {key} --out {out} {NEW}")


def revise(folder, line):
    """The authority signs this line, in revision 2."""
    config = folder / "federation.toml"
    text = config.read_text().replace("revision = 1", "revision = 2")
    config.write_text(re.sub(r"(?m)^successors = .*$", line, text))
    file = federation_file.load(config)
    charter = federation_file.sign(file, read_identity(folder / "keys" / "authority.key"))
    federation_file.write_charter(charter_path(config), charter)
    return charter


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """An enclave that was started once, and a copy of its federation's files for another."""
    monkeypatch.chdir(tmp_path)
    create(tmp_path / "old", Plan(clients=5, f=1, dimension=3), now=int(time.time()) - 60)
    shutil.copytree(tmp_path / "old", tmp_path / "new")
    opened(tmp_path / "old").close()
    return tmp_path


@pytest.fixture
def listed(machine):
    """The same, when the authority has listed the successor and the old enclave has adopted it."""
    told = ask()
    assert not told["listed"]
    charter = revise(machine / "old", f'successors = ["{told["succession"]}"]')
    for name in ("federation.toml", "federation.charter"):
        shutil.copy(machine / "old" / name, machine / "new" / name)
    with opened(machine / "old") as state:
        state.adopt(charter)
    return machine


def test_a_state_moves_in_three_steps(listed):
    asked = ask()
    assert asked["listed"]
    done = run(f"export request.bin {POLICY} --out bundle.bin {OLD}")
    assert done == {"successor": asked["identity"], "rounds": 0, "again": False}
    assert run(f"export request.bin {POLICY} --out bundle.bin {OLD}")["again"]
    taken = run(f"import bundle.bin {POLICY} {NEW}")
    assert (taken["rounds"], taken["revision"]) == (0, 2)
    with opened(listed / "new") as state:
        assert state.public.hex() == taken["receipt_key"]
        assert state.handed_over_from.hex() == taken["origin"]
        state.start(evidence="simulation")
    with opened(listed / "old") as state, pytest.raises(StateError, match="is retired"):
        state.start(evidence="simulation")


def test_nothing_leaves_for_an_enclave_that_is_not_listed(machine):
    ask()
    with pytest.raises(AttestationRefused, match="is not among the successors"):
        run(f"export request.bin {POLICY} --out bundle.bin {OLD}")
    assert not (machine / "bundle.bin").exists()
    with opened(machine / "old") as state:
        state.start(evidence="simulation")


def test_an_enclave_that_runs_is_not_exported(listed):
    ask()
    with opened(listed / "old"), pytest.raises(StateError, match="stop it first"):
        run(f"export request.bin {POLICY} --out bundle.bin {OLD}")


def test_an_unsigned_change_is_not_requested_for(machine):
    config = machine / "new" / "federation.toml"
    config.write_text(config.read_text().replace("revision = 1", "revision = 2"))
    with pytest.raises(ConfigError, match="is not what the authority signed"):
        ask()


def test_files_that_cannot_be_read_or_written_are_named(listed):
    with pytest.raises(ConfigError, match=r"absent\.bin: No such file"):
        run(f"export absent.bin {POLICY} --out bundle.bin {OLD}")
    with pytest.raises(ConfigError, match=r"absent/request\.bin: No such file"):
        ask("absent/request.bin")


def test_the_line_to_sign_is_printed_as_it_must_be_written(machine):
    with opened(machine / "old") as state:
        key = state.public
    words = f"request --from {key.hex()} --out request.bin {NEW}".replace(" --json", "")
    told = invoke(words).stdout
    agreed = succession(key, identity_of(machine / "new"))
    assert f'\nsuccessors = ["{agreed.hex()}"]\n' in told
    assert "Every client's policy needs the same line, under [federation]" in told


@pytest.mark.parametrize("key", ["", "ab", "x" * 64, "ab" * 33])
def test_a_receipt_key_that_is_none_is_refused(machine, key):
    with pytest.raises(ConfigError, match="--from is a receipt key, 64 hex digits"):
        run(f"request --from '{key}' --out request.bin {NEW}")
    assert not (machine / "request.bin").exists()


def test_another_enclave_s_key_makes_another_line(listed):
    asked = run(f"request --from {'ab' * 32} --out request.bin {NEW}")
    assert not asked["listed"]
    assert asked["succession"] != ask()["succession"]

"""The enclave's own entry: its arguments, its commands, and how it ends."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from ostraka import errors, federation_file
from ostraka.cli import enclave as cli
from ostraka.cli.federation_folder import Plan, create
from ostraka.config import succession
from ostraka.enclave import __main__ as entry
from ostraka.enclave import commands, hardening
from ostraka.enclave.commands import Machine
from ostraka.enclave.service import open_state
from ostraka.errors import AttestationRefused, ConfigError, Refusal, StateError
from ostraka.federation_file import charter_path
from ostraka.files import read_identity

OLD = "--config old/federation.toml --unsafe-simulation --json"
NEW = "--config new/federation.toml --unsafe-simulation --json"
POLICY = "--policy old/policy.toml"

GROUPS = ["", "migrate"]
COMMANDS = ["run", "evidence", "migrate request", "migrate export", "migrate import"]


# Arguments.


def help_of(line, capsys):
    with pytest.raises(SystemExit) as ended:
        entry.main([*line.split(), "--help"])
    assert ended.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("line", GROUPS + COMMANDS)
def test_help_has_examples_that_parse(line, capsys):
    lines = help_of(line, capsys).splitlines()
    text = "\n".join(lines[lines.index("Examples:") + 1 :]).replace("\\\n", " ")
    examples = [shlex.split(each) for each in text.splitlines()]
    assert examples
    for program, group, *arguments in examples:
        assert (program, group) == ("ostraka", "enclave")
        assert " ".join(arguments).startswith(line)
        assert entry.parser().parse_args(arguments).command


def test_with_json_the_figures_alone_are_on_stdout(monkeypatch, capsys):
    """A program reads stdout, and a person stderr."""
    report = commands.Report("as told to people", {"figure": 1})
    monkeypatch.setattr(commands, "request", lambda *_, **__: report)
    line = ["migrate", "request", "--from", "ab", "--out", "request.bin"]
    assert entry.main(line) == 0
    assert capsys.readouterr() == ("as told to people\n", "")
    assert entry.main([*line, "--json"]) == 0
    assert capsys.readouterr() == ('{"figure": 1}\n', "as told to people\n")


@pytest.mark.parametrize("line", COMMANDS)
def test_every_option_says_what_it_is_for(line, capsys):
    told = help_of(line, capsys).partition("options:")[2]
    assert "--config FILE" in told
    for option in re.findall(r"(?m)^  (--[a-z-]+(?: [A-Z]+)?)(.*\n?(?:^ {24}.*)?)", told):
        assert option[1].strip(), option


@pytest.mark.parametrize("line", GROUPS)
def test_a_group_without_a_command_shows_its_help(line, capsys):
    assert entry.main(line.split()) == 0
    assert capsys.readouterr().out == help_of(line, capsys)


MISTAKES = {
    "no such command": ("fly", "invalid choice: 'fly'"),
    "no such option": ("run --fast", "unrecognized arguments: --fast"),
    "an option cut short": ("run --unsafe-sim", "unrecognized arguments: --unsafe-sim"),
    "the old name of an option": (
        "run --unsafe-simulate",
        "--unsafe-simulate is --unsafe-simulation now; see `ostraka enclave run --help`",
    ),
    "an option that must be given": ("migrate request --out r.bin", "required: --from"),
    "a broker that is none": (
        "run --config old/federation.toml --key-broker ab",
        "--key-broker is an Ed25519 public key, 64 hex digits; got 2 characters",
    ),
    "a file that is not there": (
        "run --config nope.toml",
        "nope.toml: No such file or directory",
    ),
}


@pytest.mark.parametrize(("line", "message"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_one_line_and_exit_code_2(machine, line, message, capsys):
    code: object
    try:
        code = entry.main(line.split())
    except SystemExit as ended:
        code = ended.code
    told = capsys.readouterr()
    assert (code, told.out) == (2, "")
    assert told.err.startswith("ostraka: ")
    assert message in told.err
    assert len(told.err.splitlines()) == 1


ENDINGS = {
    "a failure": (StateError("state", "is damaged"), errors.FAILED),
    "a file at fault": (ConfigError("no"), errors.IMPOSSIBLE),
    "a refusal": (AttestationRefused(Refusal.DEBUG), errors.REFUSED),
    "Ctrl-C": (KeyboardInterrupt(), errors.INTERRUPTED),
}


@pytest.mark.parametrize(("error", "code"), ENDINGS.values(), ids=ENDINGS)
def test_how_it_ends(monkeypatch, error, code, capsys):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(commands, "run", fail)
    assert entry.main(["run"]) == code
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err == ("" if isinstance(error, KeyboardInterrupt) else f"ostraka: {error}\n")


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGTERM, errors.TERMINATED), (signal.SIGINT, errors.INTERRUPTED)],
)
def test_a_signal_ends_a_command_with_its_own_code(tmp_path, number, code):
    """A command that waits for its file, which is a pipe that nothing comes out of."""
    os.mkfifo(tmp_path / "federation.toml")
    command = [sys.executable, "-m", "ostraka.enclave", "run"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE) as started:
        writing = None
        while writing is None and started.poll() is None:
            with suppress(OSError):  # Nobody reads yet.
                writing = os.open(tmp_path / "federation.toml", os.O_WRONLY | os.O_NONBLOCK)
            time.sleep(0.1)
        started.send_signal(number)
        _, told = started.communicate(timeout=60)
    assert (started.returncode, told) == (code, b"")
    assert writing is not None
    os.close(writing)


# From the command `ostraka`.


def test_the_command_becomes_the_entry(monkeypatch):
    became = []
    monkeypatch.setattr(os, "execv", lambda program, words: became.append((program, words)))
    cli.enclave(["migrate", "--help"])
    cli.enclave(None)
    start = [sys.executable, "-P", "-m", "ostraka.enclave"]
    assert became == [
        (sys.executable, [*start, "migrate", "--help"]),
        (sys.executable, start),
    ]


def test_an_isolated_interpreter_stays_isolated():
    program = "from ostraka.cli.enclave import entry; print(entry(['run'])[1:])"
    done = subprocess.run(
        [sys.executable, "-I", "-c", program], capture_output=True, check=True, text=True
    )
    assert done.stdout == "['-I', '-m', 'ostraka.enclave', 'run']\n"


@pytest.mark.parametrize("line", ["", "--help", "run --help", "migrate request -h", "run --fast"])
def test_the_command_passes_everything_on(line, tmp_path):
    def said(*command):
        done = subprocess.run(
            [sys.executable, *command, *line.split()],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout, done.stderr

    assert said("-m", "ostraka", "enclave") == said("-m", "ostraka.enclave")


def test_grpc_keeps_its_internals_to_itself_unless_it_is_asked():
    program = "import os, ostraka.enclave.__main__; print(os.environ['GRPC_VERBOSITY'])"
    for given, found in (({}, "NONE"), ({"GRPC_VERBOSITY": "debug"}, "debug")):
        environment = {name: each for name, each in os.environ.items() if "GRPC" not in name}
        done = subprocess.run(
            [sys.executable, "-c", program],
            env=environment | given,
            capture_output=True,
            check=True,
            text=True,
        )
        assert done.stdout.strip() == found


# Its service and its evidence. The service itself is tested in test_rounds and over loopback.


def test_what_hardens_the_enclave_is_logged_as_events(machine, monkeypatch, capsys):
    async def nothing(*_, **__):
        pass

    monkeypatch.setattr(commands, "serve", nothing)
    monkeypatch.setattr(hardening, "harden", lambda **_: ["no core dumps"])
    line = "run --config old/federation.toml --unsafe-simulation --log-json"
    assert entry.main(line.split()) == 0
    logged = json.loads(capsys.readouterr().err)
    assert (logged["event"], logged["measure"]) == ("Hardened", "no core dumps")
    assert logged["simulated"] is True


@pytest.mark.parametrize("command", ["run", "evidence"])
def test_a_simulated_platform_that_is_missing_is_named(machine, command, capsys):
    (machine / "old" / "simulation" / "platform.json").unlink()
    line = f"{command} --config old/federation.toml --unsafe-simulation"
    assert entry.main(line.split()) == 2
    assert "platform.json: make it first" in capsys.readouterr().err


def test_evidence_is_written_into_a_file(machine, capsys):
    line = "evidence --config old/federation.toml --unsafe-simulation --out e.bin"
    assert entry.main(line.split()) == 0
    assert capsys.readouterr().out == "e.bin: evidence of kind simulation\n"
    assert (machine / "e.bin").stat().st_size > 1000


def test_evidence_that_cannot_be_written_is_told(machine, capsys):
    line = "evidence --config old/federation.toml --unsafe-simulation --out no/such/e.bin"
    assert entry.main(line.split()) == 2
    assert "no/such/e.bin: No such file or directory" in capsys.readouterr().err


# The hand-over, from one folder to another, on one machine.


def invoke(line):
    """Run a migrate command. Gives its report, or raises its error."""
    asked = entry.parser().parse_args(["migrate", *shlex.split(line)])
    return asked.command(asked)


def run(line):
    return invoke(line).figures


def code_id_of(folder):
    return Machine(folder / "federation.toml", unsafe_simulation=True).platform.code_id


def opened(folder):
    config = (folder / "federation.toml").resolve()
    platform = Machine(config, unsafe_simulation=True).platform
    return open_state(federation_file.load(config), config, platform)


def ask(out="request.bin"):
    """The new enclave's request, to follow the old one."""
    with opened(Path("old")) as state:
        key = state.receipt_key.hex()
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
    assert done == {"successor": asked["code_id"], "rounds": 0, "again": False}
    assert run(f"export request.bin {POLICY} --out bundle.bin {OLD}")["again"]
    taken = run(f"import bundle.bin {POLICY} {NEW}")
    assert (taken["rounds"], taken["revision"]) == (0, 2)
    with opened(listed / "new") as state:
        assert state.receipt_key.hex() == taken["receipt_key"]
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
        key = state.receipt_key
    words = f"request --from {key.hex()} --out request.bin {NEW}".replace(" --json", "")
    told = invoke(words).text
    agreed = succession(key, code_id_of(machine / "new"))
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

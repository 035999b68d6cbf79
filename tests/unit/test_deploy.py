"""The deployment files: they parse, their commands exist, and what keeps secrets is switched on."""

import re
import shlex
import tomllib
from collections import defaultdict
from pathlib import Path

import click
import pytest
import typer

from ostraka.cli import app
from ostraka.enclave.__main__ import parser

DEPLOY = Path(__file__).parents[2] / "deploy"
pytestmark = pytest.mark.skipif(not DEPLOY.is_dir(), reason="only the source tree has deploy/")

MANIFEST = "gramine/enclave.manifest.template"
ENCLAVE = "confidential-vm/ostraka-enclave.service"
DEVELOPMENT = "development/ostraka-enclave-dev.service"
WORKER = "systemd/ostraka-worker@.service"
SHARD = "confidential-vm/ostraka-shard@.service"
UNITS = [ENCLAVE, DEVELOPMENT, WORKER, SHARD]

VARIABLES = {
    "gramine.libos": "/gramine/libsysdb.so",
    "gramine.runtimedir()": "/gramine/lib",
    "arch_libdir": "/lib/x86_64-linux-gnu",
    "python_lib": "/usr/lib/python3.11",
    "venv": "/opt/ostraka",
    "federation": "/srv/federation",
    "state": "/srv/state",
}


def text(name):
    return (DEPLOY / name).read_text()


ENTRY = "ostraka.enclave"


def require_entry(arguments):
    """Raises SystemExit unless these are arguments of the enclave's own entry, to run it."""
    assert arguments[0] in ("run", "shard")
    return parser().parse_args(arguments)


def resolve(arguments):
    """Raises unless the command and all its options are the CLI's own."""
    found: click.Command | None = typer.main.get_command(app)
    path = []
    while isinstance(found, click.Group):
        name, found, arguments = found.resolve_command(click.Context(found), arguments)
        path.append(name)
    assert found is not None
    found.make_context(name, list(arguments))
    return path


# Gramine.


@pytest.fixture(scope="module")
def manifest():
    rendered = re.sub(r"\{\{ (.+?) \}\}", lambda match: VARIABLES[match[1]], text(MANIFEST))
    assert "{{" not in rendered
    assert "{%" not in rendered
    return tomllib.loads(rendered)


def keys(table, prefix=""):
    for name, value in table.items():
        yield f"{prefix}{name}"
        if isinstance(value, dict):
            yield from keys(value, f"{prefix}{name}.")


def test_no_setting_that_gramine_calls_insecure_is_there(manifest):
    assert [key for key in keys(manifest) if "insecure" in key or "experimental" in key] == []


def test_the_host_chooses_no_argument_and_no_variable(manifest):
    loader = manifest["loader"]
    assert set(loader) == {"entrypoint", "argv", "env", "log_level"}
    assert all(isinstance(value, str) for value in loader["env"].values())
    assert not {"LD_PRELOAD", "PYTHONPATH", "PYTHONHOME"} & set(loader["env"])


def test_it_executes_the_enclave_s_own_entry(manifest):
    python, *flags, module, entry = manifest["loader"]["argv"][:5]
    assert python == manifest["libos"]["entrypoint"]
    assert (flags, module, entry) == (["-I", "-B"], "-m", ENTRY)
    asked = require_entry(manifest["loader"]["argv"][5:])
    assert asked.config == Path("/federation/federation.toml")
    assert not asked.unsafe_simulation


def test_a_production_enclave_that_can_be_attested(manifest):
    sgx = manifest["sgx"]
    assert sgx["debug"] is False
    assert sgx["remote_attestation"] == "dcap"
    assert sgx["max_threads"] >= 32
    assert re.fullmatch(r"[1-9]\d*[MG]", sgx["enclave_size"])
    assert manifest["loader"]["log_level"] == "error"


def test_no_file_is_read_that_was_not_measured(manifest):
    sgx = manifest["sgx"]
    assert "allowed_files" not in sgx
    assert sgx.get("file_check_policy", "strict") == "strict"
    trusted = sgx["trusted_files"]
    assert all(uri.startswith("file:/") for uri in trusted)
    assert {"file:/srv/federation/federation.toml", "file:/srv/federation/federation.charter"} <= {
        *trusted
    }
    assert not any(uri.startswith("file:/srv/state") for uri in trusted)


def test_what_is_written_is_encrypted_for_this_enclave_alone(manifest):
    mounts = {mount["path"]: mount for mount in manifest["fs"]["mounts"]}
    state = mounts.pop("/federation/state")
    assert (state["type"], state["key_name"]) == ("encrypted", "_sgx_mrenclave")
    assert mounts.pop("/tmp")["type"] == "tmpfs"
    assert all(mount.get("type", "chroot") == "chroot" for mount in mounts.values())
    assert "_sgx_mrsigner" not in text(MANIFEST)


def test_every_mount_of_the_host_is_covered_by_trusted_files(manifest):
    trusted = [uri.rstrip("/") for uri in manifest["sgx"]["trusted_files"]]
    for mount in manifest["fs"]["mounts"]:
        if mount.get("type", "chroot") == "chroot":
            assert any(uri.startswith(mount["uri"]) for uri in trusted), mount


def test_the_steps_define_every_variable():
    steps = text("gramine/README.md")
    ours = {name for name in VARIABLES if not name.startswith("gramine.")}
    assert set(re.findall(r"-D(\w+)=", steps)) == ours
    assert "Not run by us" in steps


# systemd.


def unit(name):
    """{section: {setting: [values]}}: settings of a list are written once a value."""
    sections: dict[str, dict[str, list[str]]] = {}
    for line in text(name).splitlines():
        if line.startswith("["):
            section = sections[line.strip("[]")] = defaultdict(list)
        elif line and not line.startswith("#"):
            setting, value = line.split("=", 1)
            section[setting].append(value)
    return sections


@pytest.mark.parametrize("name", UNITS)
def test_a_unit_has_its_sections(name):
    assert set(unit(name)) == {"Unit", "Service", "Install"}


STARTED = f"/opt/ostraka/bin/python3 -I -m {ENTRY} "


@pytest.mark.parametrize("name", [ENCLAVE, DEVELOPMENT, SHARD])
def test_a_unit_executes_the_enclave_s_own_entry(name):
    (line,) = unit(name)["Service"]["ExecStart"]
    assert line.startswith(STARTED)
    asked = require_entry(shlex.split(line.removeprefix(STARTED).replace("%i", "1")))
    assert asked.config.is_absolute()
    assert asked.unsafe_simulation == (name == DEVELOPMENT)


def test_a_unit_runs_a_worker():
    (line,) = unit(WORKER)["Service"]["ExecStart"]
    program, *arguments = shlex.split(line.replace("%i", "worker-1"))
    assert program == "/opt/ostraka/bin/ostraka"
    assert resolve(arguments) == ["worker", "run"]


def mentioned(name, program):
    """What follows this program in a unit, comments included."""
    whole = text(name).replace("\n#", "\n")
    found = re.findall(re.escape(program) + r"((?:[^\n\\]|\\\n)+)", whole)
    return [shlex.split(line.replace("\\\n", " ")) for line in found]


@pytest.mark.parametrize("name", UNITS)
def test_commands_in_the_comments_exist(name):
    commands = mentioned(name, "/opt/ostraka/bin/ostraka ")
    entries = mentioned(name, STARTED)
    for arguments in commands:
        resolve(arguments)
    for arguments in entries:
        require_entry([word.replace("%i", "1") for word in arguments])
    assert commands or len(entries) > 1


HARDENING = {
    "NoNewPrivileges": "yes",
    "CapabilityBoundingSet": "",
    "AmbientCapabilities": "",
    "LimitCORE": "0",
    "ProtectSystem": "strict",
    "ProtectHome": "yes",
    "PrivateTmp": "yes",
    "ProtectProc": "invisible",
    "ProtectKernelModules": "yes",
    "ProtectKernelTunables": "yes",
    "ProtectKernelLogs": "yes",
    "ProtectControlGroups": "yes",
    "MemoryDenyWriteExecute": "yes",
    "RestrictNamespaces": "yes",
    "RestrictSUIDSGID": "yes",
    "LockPersonality": "yes",
    "SystemCallArchitectures": "native",
    "StateDirectoryMode": "0700",
    "UMask": "0077",
}


@pytest.mark.parametrize("name", UNITS)
def test_a_unit_gives_up_what_it_does_not_need(name):
    service = unit(name)["Service"]
    assert {setting: service[setting] for setting in HARDENING} == {
        setting: [value] for setting, value in HARDENING.items()
    }
    assert service["SystemCallFilter"][0] == "@system-service"
    assert "process_vm_readv" in service["SystemCallFilter"][-1]
    assert service["RestrictAddressFamilies"] == ["AF_INET AF_INET6 AF_UNIX"]


@pytest.mark.parametrize("name", UNITS)
def test_a_unit_comes_back_after_a_crash_and_not_after_a_mistake(name):
    service = unit(name)["Service"]
    assert service["Restart"] == ["on-failure"]
    assert "2" in service["RestartPreventExitStatus"][0].split()


def test_nothing_of_the_enclaves_memory_is_swapped():
    for name in (ENCLAVE, DEVELOPMENT, SHARD):
        assert unit(name)["Service"]["MemorySwapMax"] == ["0"]


@pytest.mark.parametrize("name", [ENCLAVE, SHARD])
def test_a_confidential_machine_is_required_and_its_evidence_within_reach(name):
    found = unit(name)
    assert found["Unit"]["AssertPathIsDirectory"] == ["/sys/kernel/config/tsm/report"]
    assert found["Service"]["ReadWritePaths"] == ["-/sys/kernel/config/tsm/report"]
    assert found["Service"]["DevicePolicy"] == ["closed"]
    assert found["Service"]["DeviceAllow"] == ["/dev/sev-guest rw", "/dev/tdx_guest rw"]
    assert "simulat" not in text(name)
    assert not {"Environment", "EnvironmentFile"} & set(found["Service"])


def test_the_development_unit_says_that_root_can_read_it():
    found = unit(DEVELOPMENT)
    assert "--unsafe-simulation" in found["Service"]["ExecStart"][0]
    assert "root can read it" in found["Unit"]["Description"][0]
    assert "ROOT CAN READ IT" in text(DEVELOPMENT)
    for name in UNITS:
        assert ("--unsafe" in unit(name)["Service"]["ExecStart"][0]) == (name == DEVELOPMENT)


def test_a_worker_is_nobody_special():
    service = unit(WORKER)["Service"]
    assert service["User"] == ["ostraka"]
    assert service["PrivateDevices"] == ["yes"]

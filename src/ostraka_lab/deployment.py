"""A federation's folder on this machine, and the processes of it."""

import json
import re
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ostraka import federation_file, files
from ostraka.cli import federation_folder
from ostraka.cli.federation_folder import AUTHORITY, FEDERATION, KEYS, Plan
from ostraka.errors import LocalProtocolError
from ostraka.files import read_identity
from ostraka_lab.children import Child, Children

Setting = str | int | float | bool

_PUBLIC = 0o644

# A round ends as soon as all have sent. These are for what must not happen: a run that waits.
_SETTINGS: dict[str, Setting] = {
    "disclose_selection": True,
    "extensions": 0,
    "measure_s": 60,
    "linger_s": 600,
    # All clients are one peer here: the limit that holds for one client would slow them all down.
    "requests_per_minute": 1_000_000,
}


@dataclass(frozen=True)
class Deployment:
    """A federation that was founded in a folder. Its processes are the children's to end."""

    root: Path
    address: str
    children: Children

    @property
    def config(self) -> Path:
        return self.root / FEDERATION

    def start_enclave(self) -> Child:
        """Its service answers when it has logged that it started."""
        arguments = ("run", "--config", str(self.config), "--unsafe-simulation", "--log-json")
        return self.children.start("enclave", "ostraka.enclave", *arguments, serves=True)

    def start_worker(self, number: int) -> Child:
        name = f"worker-{number}"
        arguments = ("worker", "run", "--enclave", self.address, "--name", name)
        key = str(self.root / KEYS / f"{name}.key")
        more = ("--key", key, "--device", "cpu", "--log-json")
        return self.children.start(name, "ostraka", *arguments, *more, serves=True)

    def start_client(self, name: str, module: str, *arguments: str) -> Child:
        """A client is a program that takes part and then ends. Without it, the rest goes on."""
        return self.children.start(name, module, *arguments, serves=False, spare=True)

    def change(self, **settings: Setting) -> None:
        """Settings of the operator's own. The enclave reads them before it opens a round."""
        _change(self.config, settings)


def found(root: Path, plan: Plan, **settings: Setting) -> str:
    """Make a federation's folder with these settings, and give the address it will answer at.

    Raises ConfigError if the folder is not empty, or the settings cannot work.
    """
    federation_folder.create(root, plan, now=int(time.time()))
    address = move(root)
    config = root / FEDERATION
    _change(config, _SETTINGS | settings)
    # The rules were signed as they were. Nobody has seen them, so the revision can stay.
    charter = federation_file.sign(
        federation_file.load(config), read_identity(root / KEYS / f"{AUTHORITY}.key")
    )
    federation_file.write_charter(federation_file.charter_path(config), charter)
    return address


def move(root: Path) -> str:
    """Give a federation an address that is free now."""
    address = f"127.0.0.1:{_free_port()}"
    _change(root / FEDERATION, {"listen": address})
    return address


def _change(config: Path, settings: Mapping[str, Setting]) -> None:
    text = config.read_text("utf-8")
    for name, value in settings.items():
        text = _set(text, name, value)
    files.write(config, [text.encode()], mode=_PUBLIC)


def _set(text: str, name: str, value: Setting) -> str:
    """A federation file with another value in the line of this setting."""
    line = re.compile(rf"^(?:# )?{name} = [^#\n]*", re.MULTILINE)
    assignment = f"{name} = {json.dumps(value)} "
    changed, count = line.subn(lambda old: assignment.ljust(len(old[0])), text)
    if count != 1:
        raise LocalProtocolError(f"the federation file has {count} lines for {name!r}, not one")
    return changed


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])

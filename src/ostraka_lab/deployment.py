"""A federation on this machine: its folder, its processes, and where it stands.

`found` makes the folder, `Deployment` starts the processes, and `Progress` follows what they log.
"""

import json
import re
import shutil
import socket
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from ostraka import federation_file, files
from ostraka.cli import federation_folder
from ostraka.cli.federation_folder import (
    AUTHORITY,
    FEDERATION,
    KEYS,
    OBSERVER,
    POLICY,
    SHARD,
    Plan,
)
from ostraka.errors import LocalProtocolError, RoundFailed
from ostraka.files import read_identity
from ostraka.protocol.confirm import electorates
from ostraka_lab.children import Child, Children, Logged

Setting = str | int | float | bool | list[str]

_PUBLIC = 0o644
_NAMED = 3  # the most awaited clients that a line of progress names
_MOST_SKIPPED = 3  # rounds in a row that may be given up, or change nothing, before the run ends
_STAGES = ("measure", "average", "hold", "confirm", "publish")  # of the enclave

# A round ends as soon as all have sent. These limits are there so that a run never hangs.
_SETTINGS: dict[str, Setting] = {
    "disclose_selection": True,
    "extensions": 0,
    "measure_s": 600,
    "linger_s": 600,
    # All clients have one address here: the limit for one client would slow them all down.
    "requests_per_minute": 1_000_000,
}


@dataclass(frozen=True)
class Deployment:
    """A federation that was founded in a folder. `children` ends its processes.

    certificate: of its service, if it speaks TLS.
    """

    root: Path
    address: str
    children: Children
    certificate: Path | None = None

    @property
    def config(self) -> Path:
        return self.root / FEDERATION

    @property
    def shards(self) -> list[str]:
        """The addresses of its shards, by their numbers."""
        return [
            federation_file.load(folder / FEDERATION).enclave.listen
            for folder in _shard_folders(self.root)
        ]

    @property
    def quorum(self) -> int:
        """How many clients have to confirm an outcome."""
        charter = federation_file.load_charter(federation_file.charter_path(self.config))
        return max((each.quorum for each in electorates(charter.federation)), default=0)

    def start_enclave(self) -> Child:
        """Start the enclave. Its service answers when it has logged that it started."""
        arguments = ("run", "--config", str(self.config), "--unsafe-simulation", "--log-json")
        return self.children.start("enclave", "ostraka.enclave", *arguments, serves=True)

    def start_shard(self, number: int) -> Child:
        """Start a shard, in a folder of its own as on a machine of its own.

        It serves when it has logged that it joined its lead.
        """
        config = _shard_folders(self.root)[number] / FEDERATION
        tls = () if self.certificate is None else ("--tls-ca", str(self.certificate))
        return self.children.start(
            f"{SHARD}{number}",
            "ostraka.enclave",
            *("shard", "--lead", self.address, "--number", str(number), "--config", str(config)),
            *("--unsafe-simulation", "--log-json", *tls),
            serves=True,
        )

    def start_worker(self, number: int) -> Child:
        """Start a worker for the enclave and all of its shards."""
        name = f"worker-{number}"
        enclaves = [word for each in (self.address, *self.shards) for word in ("--enclave", each)]
        arguments = ("worker", "run", *enclaves, "--name", name)
        key = str(self.root / KEYS / f"{name}.key")
        policy = ("--policy", str(self.root / POLICY), "--unsafe-simulation")
        tls = () if self.certificate is None else ("--tls-ca", str(self.certificate))
        more = ("--key", key, *policy, *tls, "--device", "cpu", "--log-json")
        return self.children.start(name, "ostraka", *arguments, *more, serves=True)

    def start_dashboard(self) -> str:
        """Start the live page, and open it if there is a screen. Gives its address.

        Without it, the rest goes on.
        """
        listen = f"127.0.0.1:{_free_port()}"
        arguments = ("dashboard", "--enclave", self.address, "--listen", listen, "--open")
        key = str(self.root / KEYS / f"{OBSERVER}.key")
        tls = () if self.certificate is None else ("--tls-ca", str(self.certificate))
        more = ("--key", key, "--policy", str(self.root / POLICY), "--unsafe-simulation", *tls)
        self.children.start("dashboard", "ostraka", *arguments, *more, serves=True, spare=True)
        return f"http://{listen}/"

    def start_client(self, name: str, module: str, *arguments: str) -> Child:
        """Start a client: a program that takes part and then ends. Without it, the rest goes on."""
        return self.children.start(name, module, *arguments, serves=False, spare=True)

    def change(self, **settings: Setting) -> None:
        """Change the operator's settings. The enclave reads them before it opens a round."""
        _change(self.config, settings)


def found(root: Path, plan: Plan, **settings: Setting) -> str:
    """Make a federation's folder with these settings. Gives the address that it will answer at.

    Raises ConfigError if the folder is not empty, or the settings cannot work.
    """
    federation_folder.create(root, plan, now=int(time.time()))
    address = move(root)
    config = root / FEDERATION
    _change(config, _SETTINGS | settings)
    # The terms were signed before they changed. No client has seen them: the revision can stay.
    charter = federation_file.sign(
        federation_file.load(config), read_identity(root / KEYS / f"{AUTHORITY}.key")
    )
    federation_file.write_charter(federation_file.charter_path(config), charter)
    for folder in _shard_folders(root):
        _copy_to_shard(root, folder)
    return address


def _shard_folders(root: Path) -> list[Path]:
    """The folders of the shards, by their numbers. An enclave without shards has none."""
    return sorted(root.glob(f"{SHARD}*"), key=lambda folder: int(folder.name[len(SHARD) :]))


def _copy_to_shard(root: Path, folder: Path) -> None:
    """Give a shard what was changed and signed, and an address that is free now."""
    charter = federation_file.charter_path(root / FEDERATION)
    for name in (FEDERATION, charter.name):
        shutil.copy(root / name, folder / name)
    _change(folder / FEDERATION, {"listen": f"127.0.0.1:{_free_port()}"})


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
    """Change the value in the line of this setting in a federation file."""
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


@dataclass
class RoundTimes:
    """When the steps of one round happened, in seconds since 1970, and how long each took."""

    opened: float = 0.0
    started: float = 0.0  # by the last client, in the first round of a run
    trained: float = 0.0  # by the last client
    closed: float = 0.0
    published: float = 0.0
    enclave: dict[str, float] = field(default_factory=dict)
    missing: tuple[str, ...] = ()

    @property
    def stages(self) -> dict[str, float]:
        """Seconds of each stage; empty for a round that was over before its log was followed.

        Clients send while others still train: that counts as training.
        """
        if not self.closed:
            return {}
        trained = min(max(self.trained, self._begun), self.closed)
        outside = {"train": trained - self._begun, "send": self.closed - trained}
        return {name: round(spent, 4) for name, spent in (outside | self.enclave).items()}

    @property
    def wall(self) -> float | None:
        """Seconds of the whole round, start-up apart; None if its log was not followed."""
        return round(self.published - self._begun, 4) if self.closed else None

    @property
    def _begun(self) -> float:
        """When all clients could train: the first round is open before they have started."""
        return min(max(self.opened, self.started), self.closed)


@dataclass
class Progress:
    """Follows the events of the enclave and of the clients. began: when processes were started."""

    clients: tuple[str, ...]
    workers: int
    rounds: int
    began: float = field(default_factory=time.time)
    first: int = 1  # of the rounds that are followed
    published: int = 0
    times: dict[int, RoundTimes] = field(default_factory=dict)
    gone: dict[str, str] = field(default_factory=dict)  # clients, and why
    _started: bool = False
    _joined: set[str] = field(default_factory=set)
    _trained: set[str] = field(default_factory=set)
    _arrived: set[str] = field(default_factory=set)
    _doing_now: str = ""  # by the enclave, once the round is closed
    _skipped: int = 0
    _null_steps: int = 0

    @property
    def ready(self) -> bool:
        """Whether clients can connect."""
        return self._started and len(self._joined) == self.workers

    @property
    def current(self) -> int:
        return self.published + 1

    def timed(self, number: int) -> RoundTimes:
        return self.times.get(number, RoundTimes())

    def start_up(self, number: int) -> float | None:
        """Seconds until the last client had started; None unless this is the run's first round."""
        started = self.timed(number).started
        return round(started - self.began, 4) if started else None

    def lose(self, clients: Iterable[str], why: str) -> None:
        """Note that these clients no longer take part."""
        self.gone |= dict.fromkeys(clients, why)

    def hear_client(self, event: Logged) -> None:
        match event.get("event"):
            case "ClientStarted" if event["round"] == self.first:
                self._at(self.first).started = _time(event)
            case "Trained":
                self._trained.add(event["client"])
                self._at(event["round"]).trained = _time(event)
            case "ClientFailed":
                self.lose([event["client"]], event["why"])

    def hear_enclave(self, event: Logged) -> None:
        """Follow an event. Raises RoundFailed when too many rounds in a row are given up."""
        match event.get("event"):
            case "ServiceStarted":
                self._started = True
                self.first = event["next_round"]
                self.published = self.first - 1
            case "WorkerJoined":
                self._joined.add(event["worker"])
            case "RoundOpened":
                self._at(event["number"]).opened = _time(event)
            case "UploadCompleted" | "UploadRefused":
                self._arrived.add(event["client"])
            case "RoundClosed":
                self._doing_now = "measuring"
                self._at(event["number"]).closed = _time(event)
                self._at(event["number"]).missing = tuple(event["missing"])
            case "RoundProposed":
                self._doing_now = f"waiting for {event['needed']} clients to confirm"
            case "ConfirmationsAwaited":
                silent = ", ".join(event["silent"][:_NAMED])
                self._doing_now = f"{event['missing']} confirmations missing, waiting for {silent}"
            case "NullStep":
                self._count_null_step(event)
            case "RoundTimed":
                self._at(event["number"]).enclave = {name: event[f"{name}_s"] for name in _STAGES}
            case "RoundPublished":
                self._at(event["number"]).published = _time(event)
                self.published = event["number"]
                if event["kept"]:
                    self._null_steps = 0
                self._begin_round()
            case "RoundSkipped":
                self._skip(event)

    def __str__(self) -> str:
        if not self.ready:
            return f"starting the enclave and {self.workers} workers"
        if self.published >= self.rounds:
            return "finishing"
        if not (self._trained or self._arrived or self.times.get(self.current - 1)):
            return f"starting {len(self.clients)} clients"
        return f"round {self.current} of {self.rounds}: {self._doing()}"

    def _doing(self) -> str:
        if self._doing_now:
            return self._doing_now
        present = [name for name in self.clients if name not in self.gone]
        awaited = [name for name in present if name not in self._arrived]
        text = f"{len(self._trained)} trained, {len(self._arrived)} of {len(self.clients)} in"
        if 0 < len(awaited) <= _NAMED:
            text = f"{text}, waiting for {', '.join(awaited)}"
        elif not awaited and self.gone:
            text = f"{text}, waiting in vain for {', '.join(sorted(self.gone)[:_NAMED])}"
        return text

    def _begin_round(self) -> None:
        self._trained, self._arrived, self._doing_now, self._skipped = set(), set(), "", 0

    def _skip(self, event: Logged) -> None:
        skipped = self._skipped + 1
        self._begin_round()
        self._skipped = skipped
        if skipped >= _MOST_SKIPPED:
            raise RoundFailed(
                f"round {event['number']} was given up {skipped} times: {event['why']}"
            )

    def _count_null_step(self, event: Logged) -> None:
        self._null_steps += 1
        if self._null_steps >= _MOST_SKIPPED:
            raise RoundFailed(f"the last {self._null_steps} rounds changed nothing: {event['why']}")

    def _at(self, number: int) -> RoundTimes:
        return self.times.setdefault(number, RoundTimes())


def _time(event: Logged) -> float:
    return datetime.fromisoformat(event["time"]).timestamp()

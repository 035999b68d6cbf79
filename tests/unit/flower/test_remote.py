"""The strategy and the mod with the enclave's real service, on loopback, in this process.

The nodes have keys and a policy from `ostraka init`, and a memory in a file.
"""

import asyncio
import copy
import dataclasses
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

pytest.importorskip("flwr", reason="needs Flower: make test-env")

from flwr.app import ConfigRecord, Context, Message, RecordDict

from ostraka import federation_file, run_round
from ostraka.carried.messages import SealedReply, read_hello
from ostraka.carried.remote import RemoteEnclave
from ostraka.cli.federation_folder import Plan, create
from ostraka.client.connection import Connection
from ostraka.client.memory import Memory, MemoryFile
from ostraka.core import rules
from ostraka.enclave import service
from ostraka.enclave.platform.choose import unsafe_simulated
from ostraka.encoding import UNSIGNED, encode
from ostraka.errors import ConfigError, ServiceError
from ostraka.files import read_identity, read_policy
from ostraka.flower import PrivateMultiKrum, PrivateRobust, records, sealing_mod
from ostraka.flower.records import RECORD, message_record, read_message
from ostraka.messages import Challenge

PATIENCE_S = 60.0


class Service(threading.Thread):
    """`ostraka enclave run`, as a thread. It can be stopped and started again."""

    def __init__(self, root: Path, monkeypatch: Any) -> None:
        super().__init__(daemon=True)
        self.root = root
        self.address = ""
        self.events: list[Any] = []
        self._up = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None

    def run(self) -> None:
        with asyncio.Runner() as runner:
            self._loop = runner.get_loop()
            runner.run(self._serve())

    async def _serve(self) -> None:
        platform = unsafe_simulated(self.root / "simulation/platform.json", self.root / "dev.key")
        self._task = asyncio.create_task(
            service.serve(self.root / "federation.toml", platform, self._log)
        )
        with suppress(asyncio.CancelledError):
            await self._task

    def _log(self, event: Any) -> None:
        self.events.append(event)
        if type(event).__name__ == "ServiceStarted":
            self.address = event.address
            self._up.set()

    def begin(self) -> "Service":
        self.start()
        assert self._up.wait(PATIENCE_S)
        return self

    def stop(self) -> None:
        assert self._loop is not None
        assert self._task is not None
        if self.is_alive():
            self._loop.call_soon_threadsafe(self._task.cancel)
        self.join(PATIENCE_S)
        assert not self.is_alive()


@pytest.fixture
def grace_s() -> float:
    """For the seventh node to arrive, once six have."""
    return 60.0


# Where the seventh stays away, no node has to be quick.
SIX_OF_SEVEN = pytest.mark.parametrize("grace_s", [0.2], ids=["six of seven"])


@pytest.fixture
def quorum() -> int:
    return 6


@pytest.fixture
def rule() -> str:
    return "multi-krum"


@pytest.fixture
def federation_folder(tmp_path, grace_s, quorum, rule) -> Path:
    model = {
        "weight": np.linspace(-1, 1, 60, dtype="<f4").reshape(6, 10),
        "bias": np.zeros(6, "<f4"),
    }
    save_file(model, tmp_path / "first.safetensors")
    root = tmp_path / "federation"
    plan = Plan(
        clients=7,
        workers=0,
        f=1,
        masking="none",
        model=tmp_path / "first.safetensors",
        composition=rules.parse(rule),
    )
    create(root, plan, now=int(time.time()) - 60)
    text = (root / "federation.toml").read_text()
    text = text.replace("client_momentum = 0.9", "client_momentum = 0")
    text = text.replace('listen = "127.0.0.1:7420"', 'listen = "127.0.0.1:0"')
    text = text.replace("# grace_s = 60 ", f"grace_s = {grace_s} ")
    text = text.replace("# quorum = ", f"quorum = {quorum}  # not ")
    text = text.replace("count = 10", "count = 5")
    assert f"\nquorum = {quorum}" in text
    (root / "federation.toml").write_text(text)
    file = federation_file.load(root / "federation.toml")
    charter = federation_file.sign(file, read_identity(root / "keys/authority.key"))
    federation_file.write_charter(federation_file.charter_path(file.path), charter)
    return root


@pytest.fixture
def serving(federation_folder, monkeypatch) -> Iterator[Callable[[], Service]]:
    services: list[Service] = []

    def begin() -> Service:
        services.append(Service(federation_folder, monkeypatch).begin())
        return services[-1]

    yield begin
    for each in services:
        each.stop()


@pytest.fixture
def remote(flower, federation_folder, serving):
    """A federation whose enclave is a service. Its nodes are set up by their own config."""
    service = serving()

    def node_config(node: int) -> dict[str, Any]:
        return {
            "ostraka-policy": str(federation_folder / "policy.toml"),
            "ostraka-key": str(federation_folder / f"keys/client-{node + 1}.key"),
            "ostraka-unsafe-simulation": True,
        }

    federation = flower(mods=lambda node: [sealing_mod()])
    for node in federation.grid.apps:
        federation.grid.contexts[node] = Context(1, node, node_config(node), RecordDict(), {})

    def memory(node: int) -> Memory:
        key = federation_folder / f"keys/client-{node + 1}.key"
        policy = read_policy(federation_folder / "policy.toml")
        held = MemoryFile.beside(key, key.stem, policy.federation.id).load()
        assert held is not None
        return held

    federation.memory = memory
    federation.strategy = strategy(service)
    federation.service = service
    federation.node_config = node_config
    return federation


def strategy(service: Service, **more: Any) -> PrivateMultiKrum:
    return PrivateMultiKrum(
        enclave=service.address, challenge_timeout=60, outcome_timeout=60, **more
    )


def test_rounds_with_a_service(remote):
    result = remote.start(2)
    assert [receipt.participants for receipt in remote.receipts] == [7, 7]
    np.testing.assert_allclose(result.arrays["bias"].numpy(), 2, atol=0.3)


def test_rounds_with_a_service_whose_certificates_are_long(remote, monkeypatch):
    monkeypatch.setattr("ostraka.enclave.servicer._LONGEST", 100)
    test_rounds_with_a_service(remote)


def test_a_run_resumes_after_serverapp_and_enclave_were_restarted(remote, serving, said):
    before = remote.start(2)
    remote.service.stop()
    again = serving()
    remote.strategy = strategy(again)  # a new ServerApp, which knows nothing
    for node, context in remote.grid.contexts.items():  # a new run, with new contexts
        remote.grid.contexts[node] = Context(2, node, context.node_config, RecordDict(), {})
    seen = []
    result = remote.start(4, evaluate_fn=lambda number, arrays: seen.append((number, arrays)))
    np.testing.assert_array_equal(seen[0][1]["weight"].numpy(), before.arrays["weight"].numpy())
    assert [number for number, _ in seen] == [2, 3, 4]
    assert [receipt.number for receipt in remote.receipts] == [3, 4]
    assert "going on after round 2: 2 rounds are left" in said
    np.testing.assert_allclose(result.arrays["bias"].numpy(), 4, atol=0.4)


def test_an_outcome_that_waits_is_confirmed_after_all_were_restarted(remote, serving, said):
    """The pending outcome is published, bit for bit, and nobody trains for it again."""
    remote.grid.down = lambda node, message: (
        None if node in (1, 2, 3) and remote.polls(message) else message
    )
    remote.start(1)
    assert remote.receipts == []
    assert any("1 more confirmations are needed" in line for line in said)
    assert any("client-2, client-3, client-4" in line for line in said)
    remote.service.stop()
    remote.strategy = strategy(serving())
    for node, context in remote.grid.contexts.items():
        remote.grid.contexts[node] = Context(2, node, context.node_config, RecordDict(), {})
    remote.grid.down = lambda node, message: message
    result = remote.start(1)
    assert [(each.number, each.participants) for each in remote.receipts] == [(1, 7)]
    assert set(remote.trained.values()) == {1}
    np.testing.assert_allclose(result.arrays["bias"].numpy(), 1, atol=0.2)
    remote.start(2)
    assert [receipt.number for receipt in remote.receipts] == [1, 2]


@pytest.mark.parametrize(("quorum", "grace_s"), [(5, 0.2)], ids=["five of seven"])
def test_nodes_that_were_never_sampled_meet_the_enclave_to_confirm(remote):
    """Five of seven train, and one of them does not confirm: so others are asked."""
    remote.strategy = strategy(remote.service, fraction_train=5 / 7, min_available_nodes=7)
    silent: list[int] = []

    def down(node, message):
        if remote.polls(message) and (not silent or node in silent):
            silent.append(node)
            return None
        return message

    remote.grid.down = down
    remote.start(2)
    assert [receipt.participants for receipt in remote.receipts] == [5, 5]
    met = [node for node in remote.grid.apps if node not in silent]
    assert all(remote.memory(node).voted.number == 2 for node in met[:4])


def test_a_stranger_is_left_out_with_the_reason(remote, federation_folder, said):
    from ostraka.files import write_identity

    write_identity(federation_folder / "keys/mallory.key", "mallory")
    remote.add(99, mods=[sealing_mod()])
    remote.grid.contexts[99].node_config.update(remote.node_config(0))
    remote.grid.contexts[99].node_config["ostraka-key"] = str(
        federation_folder / "keys/mallory.key"
    )
    remote.start(1)
    assert remote.receipts[0].participants == 7
    assert any(line.startswith("node 99 is left out") and "refuses" in line for line in said)


@SIX_OF_SEVEN
def test_a_node_that_dies_costs_the_grace_and_not_the_deadline(remote, said):
    del remote.grid.apps[3]
    remote.strategy.min_available_nodes = 6
    remote.start(1)  # The deadline is 600 s.
    assert remote.receipts[0].participants == 6


def test_a_node_goes_by_its_own_config_and_not_by_the_app(remote, said):
    """Otherwise the app's author could have it trust any enclave."""
    from ostraka.flower import UNSAFE_SIMULATION

    remote.add(3, mods=[sealing_mod(UNSAFE_SIMULATION, disclose_metrics=True)])
    remote.grid.contexts[3].node_config.update(remote.node_config(3))
    remote.start(1)
    assert remote.receipts[0].participants == 7
    replies = [reply for node, message, reply in remote.grid.log if node == 3]
    assert all("metrics" not in reply.content for reply in replies)


UNFIT = {
    "no config at all": ({}, "has no policy or no key"),
    "no key": ({"ostraka-policy": "policy.toml"}, "has no policy or no key"),
    "a key that is not there": (
        {"ostraka-policy": "policy.toml", "ostraka-key": "nowhere/secret.key"},
        "nowhere/secret.key",
    ),
    "an unknown word": ({"ostraka-polciy": "policy.toml"}, "unknown ostraka-polciy"),
    "a flag that is no flag": ({"ostraka-unsafe-simulation": "no"}, "is a bool"),
}


@SIX_OF_SEVEN
@pytest.mark.parametrize("what", UNFIT)
def test_a_node_with(what, remote, said):
    """It sends nothing. Its own log says why, and the SuperLink does not learn of its files."""
    config, reason = UNFIT[what]
    remote.grid.contexts[3].node_config.clear()
    remote.grid.contexts[3].node_config.update(config)
    remote.start(1)
    assert remote.receipts[0].participants == 6
    assert any(reason in line for line in said)
    assert any("node 3 is left out: the node is not set up" in line for line in said)


def test_the_strategys_numbers_must_be_those_of_the_terms(remote):
    remote.strategy = strategy(remote.service, num_malicious_nodes=2)
    with pytest.raises(ConfigError, match="f = 1"):
        remote.start(1)
    remote.strategy = strategy(remote.service, num_nodes_to_select=5)
    with pytest.raises(ConfigError, match="k = all but f"):
        remote.start(1)
    remote.strategy = PrivateRobust(enclave=remote.service.address, rule="mean")
    with pytest.raises(ConfigError, match=r"have the rule multi-krum, .* was given mean"):
        remote.start(1)


@pytest.mark.parametrize("quorum", [7], ids=["all"])
@pytest.mark.parametrize(
    "rule", ["multi-krum(k=4)", "arc+caf", "trimmed-mean(beta=0.2)", "fltrust(root=client-2)"]
)
def test_the_signed_terms_of_a_service_decide_about_the_rule(remote, rule, quorum):
    """The model moves as by the same round as a function."""
    remote.strategy = PrivateRobust(
        enclave=remote.service.address, challenge_timeout=60, min_available_nodes=7
    )
    result = remote.start(1)
    assert [(each.rule, each.participants) for each in remote.receipts] == [(rule, 7)]

    def flat(model):
        return np.concatenate([model[name].reshape(-1) for name in ("bias", "weight")])

    first = {name: remote.model[name] for name in ("bias", "weight")}  # as the app gets them
    rows = [flat(remote.honest(node, 1, first)) - flat(first) for node in range(7)]
    options = {
        name: value.replace("client-2", "client-1") if name == "root" else value
        for name, value in dataclasses.asdict(rules.parse(rule).options).items()
    }
    plain = rules.parse(rule)
    expected = run_round(rows, f=1, rule=plain.name, pre=plain.pre, masking="none", **options)
    after = flat({name: array.numpy() for name, array in result.arrays.items()})
    np.testing.assert_allclose(after - flat(remote.model), expected.aggregate, atol=1e-6)


@pytest.mark.parametrize("rule", ["arc+caf"])
def test_multi_krum_is_refused_by_a_service_with_another_rule(remote, rule):
    remote.strategy = strategy(remote.service)
    with pytest.raises(ConfigError, match="this strategy is for multi-krum"):
        remote.start(1)


def test_an_app_with_another_model_is_told_at_once(remote):
    remote.model = {"weight": np.zeros((2, 2), "<f4")}
    with pytest.raises(ConfigError, match="differ in bias"):
        remote.start(1)


def test_the_federations_last_round_ends_the_run(remote, said):
    result = remote.start(7)
    assert [receipt.number for receipt in remote.receipts] == [1, 2, 3, 4, 5]
    assert "all rounds of the federation are over" in said
    assert len(result.arrays) == 2


class Asking:
    """An operator who asks a node for updates in any number of runs."""

    def __init__(self, remote: Any, node: int, **config: Any) -> None:
        self.remote, self.node = remote, node
        self.config = remote.node_config(node) | config
        self.app = remote.grid.apps[node]
        self.enclave = RemoteEnclave(remote.service.address)
        manifest = records.manifest_of(remote.model)
        self.head = self.enclave.start(manifest, records.vector_of(remote.model, manifest))

    def prepare(self, run: int) -> tuple[Context, RecordDict]:
        """A run's context, and a message with the proof that it has asked for."""
        context = Context(run, self.node, self.config, RecordDict(), {})
        greeting = self.app(self.remote.question(self.node), context)
        proof = self.enclave.introduce(read_hello(read_message(greeting.content)))
        self.enclave.close()
        model = records.Template(self.remote.model).record(self.head.manifest, self.head.model)
        settings = ConfigRecord({"server-round": 1})
        record = message_record(encode(proof))
        content = RecordDict({"arrays": model, "config": settings, RECORD: record})
        return context, content

    def train_at_once(self, jobs: list[tuple[Context, RecordDict]]) -> list[str]:
        """For each: sealed, or why not. All have joined before the first of them seals."""
        together, said = threading.Barrier(len(jobs)), []

        def update(node: int, number: int, model: Any) -> Any:
            together.wait(PATIENCE_S)
            return self.remote.honest(node, number, model)

        def go(context: Context, content: RecordDict) -> None:
            reply = self.remote.grid.apps[self.node](Message(content, self.node, "train"), context)
            said.append(reply.error.reason if reply.has_error() else "sealed")

        self.remote.add(self.node, update, mods=[sealing_mod()])
        threads = [threading.Thread(target=go, args=job) for job in jobs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        return said


def test_runs_in_parallel_get_no_more_updates_than_one(remote):
    """Each of them has joined before any update was counted."""
    asking = Asking(remote, 1, **{"ostraka-resends": 2})
    said = asking.train_at_once([asking.prepare(run) for run in range(2, 8)])
    assert said.count("sealed") == 3
    assert sum("was asked for 3 times more" in each for each in said) == 3


def test_a_proof_is_good_for_one_update_in_however_many_processes(remote):
    """Flower stores a context when its task ends, so tasks at the same time have the same nonce."""
    asking = Asking(remote, 1)
    context, content = asking.prepare(2)
    jobs = [(copy.deepcopy(context), RecordDict(dict(content))) for _ in range(3)]
    said = asking.train_at_once(jobs)
    assert said.count("sealed") == 1
    assert sum("answered before" in each for each in said) == 2


def test_a_node_that_has_sent_enough_names_the_file_and_only_to_its_owner(remote, said):
    asking = Asking(remote, 1, **{"ostraka-resends": 0})
    first, second = (asking.train_at_once([asking.prepare(run)])[0] for run in (2, 3))
    assert first == "sealed"
    assert "ask the operator why" in second
    assert ".joins" not in second
    assert any(re.search(r"client-2\.[0-9a-f]{16}\.memory\.joins", line) for line in said)


@SIX_OF_SEVEN
def test_an_oversized_header_is_left_out_before_the_wire(remote, federation_folder, said):

    identity = read_identity(federation_folder / "keys/client-1.key")

    def up(node, reply):
        if node == 0 and remote.is_sealed(reply):
            read = SealedReply.from_bytes(read_message(reply.content))
            huge = replace(read.sealed.header, sealed_key=bytes(2**19), signature=UNSIGNED)
            signed = replace(read.sealed, header=identity.sign(huge))
            changed = replace(read, sealed=signed).to_bytes()
            reply.content[RECORD] = message_record(changed)
        return reply

    remote.grid.up = up
    remote.start(1)
    assert remote.receipts[0].participants == 6
    assert any(line.startswith("node 0 is left out") and "small header" in line for line in said)


def test_a_brief_introduction_has_no_more_time_for_the_chain(remote, monkeypatch):
    enclave = RemoteEnclave(remote.service.address, seconds=60)
    enclave.open([])
    hello = remote.greet(0)
    budgets = []
    stream = Connection.stream

    def noted(self, method, request):
        budgets.append((method, self.patience.seconds))
        return stream(self, method, request)

    monkeypatch.setattr(Connection, "stream", noted)
    enclave.introduce(replace(hello, after=0), seconds=7)
    enclave.close()
    assert set(budgets) == {("GetChain", 7)}


def test_what_is_too_large_for_the_service_is_not_sent_again(remote):
    enclave = RemoteEnclave(remote.service.address, seconds=60)
    enclave.open([])
    hello = remote.greet(0)
    huge = Challenge(hello.challenge.nonce, "x" * 5 * 2**20, hello.challenge.signature)
    with pytest.raises(ServiceError, match="larger than max") as refused:
        enclave.introduce(replace(hello, challenge=huge))
    enclave.close()
    assert refused.value.status == "RESOURCE_EXHAUSTED"  # and not that no answer came

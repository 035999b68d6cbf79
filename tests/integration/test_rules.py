"""Every kind of rule through real services, one after another in one federation."""

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import ostraka
from ostraka.core import rules
from ostraka.errors import AttestationRefused, Refusal

N, F, D = 7, 1, 3000
SENDING = 6  # The last client only looks on.
PINNED = "arc+nnm+geometric-median"

# One of each kind, in the order of the rounds.
KINDS = {
    "weights after pre-aggregations": PINNED,
    "weights": "multi-krum(k=3)",
    "columns": "trimmed-mean",
    "columns that disclose values": "median",
    "a trusted root": "fltrust(root=client-2)",
    "columns after mixing": "nnm+meamed",
}


def rows_of(number: int) -> Any:
    """Rows (6, d) of one round: five honest, and one that sends the opposite."""
    rng = np.random.default_rng([5, number])
    rows = rng.normal(size=D) + 0.4 * rng.normal(size=(SENDING, D))
    rows[SENDING - 1] *= -2
    return rows.astype(np.float32)


@dataclass
class Played:
    """models: before the first round, and after each. receipts, by number."""

    models: list[Any] = field(default_factory=list)
    receipts: dict[int, Any] = field(default_factory=dict)
    refused: dict[int, AttestationRefused | None] = field(default_factory=dict)


def settings_of(composition: rules.Composition) -> dict[str, Any]:
    given = {name: getattr(composition.options, name) for name in composition.options.given}
    return {
        "rule": composition.name,
        "pre": list(composition.pre),
        "disclose_values": composition.discloses,
        **given,
    }


def unset(deployment: Any, *names: str) -> None:
    text = deployment.config.read_text()
    for name in names:
        text = re.sub(rf"(?m)^{name} = ", f"# {name} = ", text, count=1)
    deployment.config.write_text(text)


@pytest.fixture
def played(deploy) -> Played:
    """All rounds of it. Each has another rule, by another revision that the authority signs."""
    deployment = deploy(
        clients=N,
        f=F,
        dimension=D,
        settings={
            "count": len(KINDS),
            "quorum": SENDING,
            "grace_s": 0,
            "client_momentum": 0.0,
            "linger_s": 30,
        },
    )
    pinning = deployment.root / "pinning.toml"
    text = deployment.policy.read_text()
    pinning.write_text(text)
    assert f'rules = ["{PINNED}"]' in text
    text = re.sub(r"(?m)^rules = .*\n", "", text).replace(
        "disclose_values = false", "disclose_values = true"
    )
    deployment.policy.write_text(text)
    enclave = deployment.enclave()
    deployment.workers()
    enclave.wait_for("WorkerJoined", after=enclave.wait_for("WorkerJoined"))
    played = Played()
    with ExitStack() as stack, ThreadPoolExecutor(SENDING) as pool:

        def connect(number: int, policy: Any) -> ostraka.Client:
            name = f"client-{number}"
            return stack.enter_context(
                ostraka.Client(
                    deployment.address,
                    name=name,
                    key=deployment.key(name),
                    policy=policy,
                    unsafe_simulation=True,
                    timeout=120,
                )
            )

        clients = [connect(number + 1, deployment.policy) for number in range(SENDING)]
        watching = connect(N, pinning)
        for number, following in _with_next(list(KINDS.values())):
            fetched = list(pool.map(lambda client: client.fetch(), clients))
            played.models.append(fetched[0].vector)
            played.refused[number] = _refusal(watching)
            if following is not None:
                # In force from the next round on, which opens as soon as this one is over.
                unset(deployment, *settings_of(rules.parse("multi-krum(k=3)")), "root")
                deployment.set(revision=number + 1, **settings_of(rules.parse(following)))
            sent = pool.map(lambda client, row: client.submit(row), clients, rows_of(number))
            outcomes = list(sent)
            assert all(outcome.accepted for outcome in outcomes)
            played.receipts[number] = outcomes[0].receipt
        last = clients[0].fetch()
        assert last.finished
        played.models.append(last.vector)
    return played


def _with_next(texts: list[str]) -> Iterator[tuple[int, str | None]]:
    """The number of each round, and the rule of the next."""
    return enumerate([*texts[1:], None], 1)


def _refusal(watching: ostraka.Client) -> AttestationRefused | None:
    try:
        watching.fetch()
    except AttestationRefused as refused:
        return refused
    return None


@pytest.mark.slow
def test_each_kind_gives_the_aggregate_of_one_round_as_a_function(played):
    for number, text in enumerate(KINDS.values(), 1):
        receipt, composition = played.receipts[number], rules.parse(text)
        assert (receipt.rule, receipt.revision, receipt.failure) == (text, number, "")
        root = composition.options.root and "client-1"  # which counts from 0 in one process
        options = {name: getattr(composition.options, name) for name in composition.options.given}
        expected = ostraka.run_round(
            rows_of(number),
            f=F,
            rule=composition.name,
            pre=composition.pre,
            disclose_values=composition.discloses,
            **(options | ({"root": root} if root else {})),
        ).aggregate
        moved = played.models[number] - played.models[number - 1]
        # Dither is drawn anew in each, and moves lengths, by which fltrust goes, by up to 1e-4.
        np.testing.assert_allclose(moved, expected, atol=1e-3, err_msg=text)
        assert np.abs(expected).max() > 1
    # A client that pins the first rule has joined that round, and refuses all that came after.
    assert played.refused[1] is None
    for number in range(2, len(KINDS) + 1):
        refused = played.refused[number]
        assert refused is not None
        assert refused.reason is Refusal.RULE

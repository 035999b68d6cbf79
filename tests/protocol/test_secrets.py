"""Secrets never print: in no representation, in no error, in no message."""

import base64
import dataclasses
import gc
import traceback

import numpy as np
import pytest

from ostraka.encoding import encode
from ostraka.errors import OstrakaError, Rejection
from ostraka.protocol.client import Submitted
from ostraka.protocol.enclave import Pending


class Secrets:
    """What the parties drew in a simulation, without what they have made public on purpose."""

    def __init__(self, simulation, public):
        shown = b"".join(public)
        self.values = [drawn for drawn in simulation.drawn if drawn not in shown]
        assert len(self.values) > len(simulation.names), "the parties have drawn secrets"

    def assert_absent(self, text):
        """Neither whole nor in part, neither as bytes nor as any usual text."""
        raw = text if isinstance(text, bytes) else text.encode()
        for value in self.values:
            for part in (value[:12], value[-12:]):
                text_forms = (repr(part)[2:-1], part.hex(), base64.b64encode(part).decode())
                forms = (part, *(form.encode() for form in text_forms))
                assert not any(form in raw for form in forms), f"{value.hex()} shows"


def reachable(*roots):
    """Every object of the package that can be reached from these."""
    seen, todo, found = set(), list(roots), []
    while todo:
        each = todo.pop()
        if id(each) in seen or isinstance(each, type):
            continue
        seen.add(id(each))
        if type(each).__module__.startswith("ostraka."):
            found.append(each)
            todo.extend(gc.get_referents(each))
        elif isinstance(each, (dict, list, tuple, set)):
            todo.extend(gc.get_referents(each))
    return found


def finished(simulate, masking):
    """A whole round, and all that lived in it."""
    rows = np.random.default_rng(0).normal(size=(7, 4_200)).astype(np.float32)
    terms = {"rows": rows, "tile": 1_024, "sketch": 4096, "defence": "multi-krum"}
    simulation = simulate(masking=masking, budget=2 * rows[0].nbytes, **terms)
    round_ = simulation.open()
    submitted = simulation.join(simulation.clients[0], round_.offer).seal(simulation.rows[0])
    round_.send(submitted.sealed)
    round_.note(submitted.sealed.header, float(np.linalg.norm(simulation.rows[0])))
    round_.send_all(but=[0])
    round_.close()
    alive = [vars(simulation), vars(round_), submitted]
    public = [round_.offer.round_id, *(upload for _, upload in round_.uploads)]
    public.append(simulation.federation.id)
    if not round_.terms.inside:
        attempt = round_.offload()
        attempt.connect(attempt.accepts())
        attempt.encode()
        round_.measured = attempt.decode(attempt.answers())
        alive.append(vars(attempt))
        public.append(attempt.offers[0].attempt_id)
    else:
        round_.measure()
    proposed = round_.average()
    alive += [proposed, simulation.enclave.ballot(proposed.pending)]
    return Secrets(simulation, public), alive


def test_nothing_that_holds_a_secret_shows_it(simulate, masking):
    secrets, roots = finished(simulate, masking)
    objects = reachable(*roots)
    kinds = {type(each).__name__ for each in objects}
    expected = {"Identity", "HybridKey", "TileOpener", "Intake", "Measured", "Folds"}
    expected |= {"_Resident", "_Spooled", "Arrival"}
    if masking != "none":
        expected |= {"Channel", "PendingChannel", "Computing", "Masking"}
    if masking == "gaussian":
        expected |= {"Noise", "GaussianEncoder"}
    if masking == "exact":
        expected |= {"LeadingGram", "ExactEncoder", "Freivalds", "SecretStream"}
    assert expected <= kinds, "the walk reaches whatever holds a key"
    for each in objects:
        secrets.assert_absent(repr(each))
        secrets.assert_absent(str(each))
        secrets.assert_absent(f"{each}")


def test_no_message_holds_a_secret_in_the_clear(simulate, masking):
    secrets, roots = finished(simulate, masking)
    labelled = [each for each in reachable(*roots) if hasattr(each, "LABEL")]
    pending = [each for each in labelled if isinstance(each, Pending)]
    assert len(pending) == 1, "it is sealed before it leaves: it has the salt in it"
    messages = [each for each in labelled if each not in pending]
    kinds = {type(each).__name__ for each in messages}
    assert {"RoundOffer", "Receipt", "UpdateHeader", "Proposal"} <= kinds
    for message in messages:
        secrets.assert_absent(encode(message))


def test_the_walk_would_find_a_secret(simulate, masking):
    secrets, _roots = finished(simulate, masking)

    @dataclasses.dataclass
    class Leaky:
        key: bytes

    for text in (
        repr(Leaky(secrets.values[0])),
        secrets.values[0].hex(),
        f"key {secrets.values[-1]!r}",
        secrets.values[1] + b"...",
    ):
        with pytest.raises(AssertionError, match="shows"):
            secrets.assert_absent(text)


def raised(action, *arguments):
    """The error, and every error behind it."""
    with pytest.raises(OstrakaError) as caught:
        action(*arguments)
    chain: list[BaseException] = []
    error: BaseException | None = caught.value
    while error is not None:
        chain.append(error)
        error = error.__cause__ or error.__context__
    return chain


def provocations(round_):
    """One action for each way in which this round can be made to raise."""
    good = round_.seal(1)
    round_.send(good)
    flipped = bytes([good.tiles[0].ciphertext[0] ^ 1]) + good.tiles[0].ciphertext[1:]
    first = dataclasses.replace(good.tiles[0], ciphertext=flipped)
    unknown = dataclasses.replace(good.tiles[0], upload_id=bytes(32))
    header = good.header
    stranger = round_.simulation.stranger
    yield round_.accept, header
    yield round_.accept, stranger.sign(header)
    yield round_.accept, dataclasses.replace(header, client="client-99")
    for lie in (
        {"norm": np.nan},
        {"dimension": 1},
        {"round_id": bytes(32)},
        {"federation": bytes(32)},
        {"round_key": bytes(32)},
        {"sealed_key": header.sealed_key},
        {"sealed_key": b""},
    ):
        yield round_.accept, round_.forge(2, **lie).header
    yield round_.accept_tile, first
    yield round_.accept_tile, unknown
    yield (round_.close,)
    client = round_.simulation.clients[0]
    join = round_.simulation.join
    yield join, client, stranger.sign(round_.offer)
    yield join(client, round_.offer).seal, np.zeros(3, np.float32)


def test_no_error_shows_a_secret(simulate, masking):
    round_ = simulate(masking=masking, budget=0).open()
    chains = [raised(*each) for each in provocations(round_)]

    round_.send_all(but=[1])
    round_.close()
    if not round_.terms.inside:
        attempt = round_.offload()
        accepts = attempt.accepts()
        chains.append(raised(attempt.connect, accepts[::-1]))
        chains.append(raised(round_.simulation.workers[0].accept, attempt.offers[1]))
        attempt.connect(accepts)
        chains.append(raised(attempt.connect, accepts))
        attempt.encode()
        chains.append(raised(attempt.encode))
        chains.append(raised(attempt.decode, attempt.answers()[::-1]))
        round_.measured = attempt.decode(attempt.answers())
    else:
        round_.measure()
    round_.spool[round_.uploads[0], 0] = b""
    chains.append(raised(round_.try_to_average))

    secrets = Secrets(round_.simulation, [round_.offer.round_id, *round_.senders])
    assert len(chains) > len(Rejection) / 2
    for chain in chains:
        secrets.assert_absent("".join(traceback.format_exception(chain[0])))
        for error in chain:
            secrets.assert_absent(repr(error))
            secrets.assert_absent(str(error))
            secrets.assert_absent(repr(error.args) + repr(vars(error)))


def test_a_failed_decryption_does_not_say_why(simulate):
    """One error for every cause, so that none can be told from another."""
    round_ = simulate().open()
    header = round_.seal(2).header
    stranger = round_.simulation.stranger
    causes = (
        stranger.sign(header),
        dataclasses.replace(header, client="client-99"),
        dataclasses.replace(header, signature=bytes(64)),
        dataclasses.replace(header, sealed_key=header.sealed_key[:-1]),
    )
    assert len({str(raised(round_.accept, each)[0]) for each in causes}) == 1


def test_the_selection_does_not_print(simulate, masking):
    """Who was selected stays inside, unless the terms disclose it."""
    round_ = simulate(masking=masking).open()
    round_.send_all()
    published = round_.finish()
    assert not any(name in repr(published) for name in published.selected)


def test_a_submitted_update_does_not_print(simulate):
    simulation = simulate()
    submitted = simulation.join(simulation.clients[0], simulation.open().offer).seal(
        simulation.rows[0]
    )
    assert isinstance(submitted, Submitted)
    assert len(repr(submitted)) < 20_000
    assert "UpdateTile" not in repr(submitted)

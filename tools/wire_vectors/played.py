"""One round of three clients and three workers, which most of the vectors are taken from."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ostraka.arrays import Float32
from ostraka.attestation.claims import in_process
from ostraka.config import Federation, Manifest, Member, Tensor, Terms
from ostraka.core import gram, uploads
from ostraka.core.rules import Options
from ostraka.crypto.channel import Channel, accept_offer
from ostraka.crypto.stream import SecretStream
from ostraka.crypto.updates import SealedUpdate, context
from ostraka.encoding import UNSIGNED, encode, pack
from ostraka.messages import (
    Answer,
    Certified,
    ChannelAccept,
    ChannelOffer,
    Charter,
    Confirmation,
    MaskSeed,
    RoundOffer,
    ShareTile,
    UpdateHeader,
)
from ostraka.protocol.client import Client, Submitted
from ostraka.protocol.confirm import Ballot
from ostraka.protocol.enclave import (
    Enclave,
    Measured,
    Offload,
    Partial,
    Proposed,
    advance,
    combine,
    decide,
    gather,
    propose,
)
from ostraka.protocol.worker import Computing
from wire_vectors.notation import Drawn, HybridSeeds, Seals, fixed, identity

D, TILE, WORKERS = 40, 16, 3


@dataclass(frozen=True)
class Upload:
    """One client's part of the round."""

    seed: bytes
    update: Float32
    key: bytes
    submitted: Submitted[SealedUpdate]

    @property
    def header(self) -> UpdateHeader:
        return self.submitted.sealed.header


@dataclass(frozen=True)
class Line:
    """One worker's part of the round, between its offer and its answer."""

    offer: ChannelOffer
    accept: ChannelAccept
    secret: bytes
    tiles: tuple[ShareTile, ...]
    seed: MaskSeed | None
    answer: Answer

    @property
    def channel(self) -> Channel:
        return Channel(self.secret, pack(encode(self.offer), encode(self.accept)))


@dataclass(frozen=True)
class Round:
    """Everything that crosses a boundary in one round, with the secrets behind it."""

    charter: Charter
    offer: RoundOffer
    key: HybridSeeds
    uploads: tuple[Upload, ...]
    lines: tuple[Line, ...]
    measured: Measured
    proposed: Proposed
    selection_salt: bytes
    certified: Certified
    votes: tuple[Confirmation, ...]

    @property
    def federation(self) -> Federation:
        return self.charter.federation


def updates() -> list[Float32]:
    """Three rows (d,), the third far from the others. Multiples of 2^-16: norms are exact."""
    words = np.frombuffer(fixed("updates", 8 * D), "<u4").reshape(2, D)
    base, near = (words % 2**18).astype(np.int64) - 2**17
    return [(each / 2**16).astype("<f4") for each in (base, base + near // 8, -2 * base)]


def terms(upload: str = "float32") -> Terms:
    manifest = Manifest((Tensor("layer.weight", (6, 6)), Tensor("layer.bias", (4,))))
    return Terms(
        manifest,
        f=0,
        rule="multi-krum",
        pre=(),
        options=Options(k=2),
        workers=WORKERS,
        tile=TILE,
        upload=upload,
        report_metrics=("loss", "accuracy"),
    )


def reports() -> list[dict[str, float] | None]:
    """What each client reports. The third does not."""
    return [{"loss": 0.314, "accuracy": 0.75}, {"loss": 27.0, "accuracy": 0.5}, None]


def names(role: str) -> list[str]:
    return [f"{role}-{number}" for number in (1, 2, 3)]


def play(seals: Seals) -> Round:
    """Run the round as `ostraka.protocol.round.play` does, with HPKE's outputs as recorded."""
    federation = Federation(
        terms(),
        tuple(Member(name, identity(name).public) for name in names("client")),
        tuple(Member(name, identity(name).public) for name in names("worker")),
        identity("authority").public,
        fixed("federation id"),
    )
    drawn = Drawn("enclave")
    enclave = Enclave(federation, identity("enclave"), entropy=drawn)
    intake = enclave.open_round()
    key = _round_key(drawn)
    sent = tuple(
        _upload(seals, key, Client(name, identity(name), federation), intake.offer, update, report)
        for name, update, report in zip(names("client"), updates(), reports(), strict=True)
    )
    for each in sent:
        intake.accept(each.header)
        for tile in each.submitted.sealed.tiles:
            intake.take(each.header.client, tile)
    cohort = intake.close()
    lines, partial = _measure(seals, Offload(cohort), drawn.log[-1])
    measured = gather(cohort, [partial])
    plan = decide(cohort, measured)
    outcome = advance(cohort.context, combine(cohort, measured.scales, plan))
    proposed = replace(propose(cohort, measured, plan, [outcome.leaves]), slices=(outcome,))
    selection_salt = drawn.log[-2]
    votes, certified = _confirm(enclave.ballot(proposed.pending), proposed, sent)
    return Round(
        charter=identity("authority").sign(Charter(federation, UNSIGNED)),
        offer=intake.offer,
        key=key,
        uploads=sent,
        lines=lines,
        measured=measured,
        proposed=proposed,
        selection_salt=selection_salt,
        certified=certified,
        votes=votes,
    )


def _round_key(drawn: Drawn) -> HybridSeeds:
    """The one key that the enclave has drawn: 64 bytes, and then 32."""
    pairs = zip(drawn.log, drawn.log[1:], strict=False)
    return next(HybridSeeds(*each) for each in pairs if [*map(len, each)] == [64, 32])


def _upload(  # noqa: PLR0917 (one upload, from its secrets to its bytes)
    seals: Seals,
    key: HybridSeeds,
    client: Client,
    offer: RoundOffer,
    update: Float32,
    report: dict[str, float] | None,
) -> Upload:
    """Seal an update as a client does, and put what was recorded in the place of HPKE's output."""
    name, drawn = client.name, Drawn(client.name)
    attested = in_process(offer, identity("enclave").public)
    submitted = replace(client, entropy=drawn).join(offer, attested).seal(update, report)
    made, tile_key = submitted.sealed, drawn.log[-1]
    sealed_key = seals.seal(
        f"the sealed key of {name}",
        "Sealing: the upload's key, the stated norm, the step and the report, to the round's key",
        key,
        tile_key
        + np.array([uploads.norm(update), 0.0], ">f8").tobytes()
        + terms().asked.write(report),
        context(made.header),
    )
    header = identity(name).sign(replace(made.header, sealed_key=sealed_key))
    recorded = replace(submitted, sealed=SealedUpdate(header, made.tiles))
    return Upload(fixed(f"{name}'s Ed25519 seed"), update, tile_key, recorded)


def _confirm(
    ballot: Ballot, proposed: Proposed, sent: Sequence[Upload]
) -> tuple[tuple[Confirmation, ...], Certified]:
    """Have every client vote, and check what it is then shown."""
    voted = [each.submitted.vote(ballot.proposal) for each in sent]
    votes = tuple(each.joined.client.confirmation() for each in voted)
    for vote in votes:
        ballot.add(vote)
    certified = Certified(proposed.receipt, ballot.certificate(proposed.pending.salt))
    for each in voted:
        each.finish(certified, proposed.state.model)
    return votes, certified


def _measure(seals: Seals, offload: Offload, attempt: bytes) -> tuple[tuple[Line, ...], Partial]:
    """Play the attempt and its workers. attempt: the 32 bytes that all its secrets come from."""
    stream = SecretStream(attempt)
    if stream.bytes(32) != offload.offers[0].attempt_id:
        raise SystemExit("an attempt draws its secrets in another order: see _measure")
    accepts, secrets = [], []
    for name, offer in zip(names("worker"), offload.offers, strict=True):
        drawn = Drawn(name)
        made, _ = accept_offer(
            offer, receipt_key=identity("enclave").public, identity=identity(name), entropy=drawn
        )
        sealed_secret = seals.seal(
            f"the channel secret of {name}",
            "Sealing: a worker's secret, sealed to the offer's key; info is the encoded offer",
            HybridSeeds.read(stream.bytes),
            drawn.log[-1],
            encode(offer),
        )
        accepts.append(identity(name).sign(replace(made, sealed_secret=sealed_secret)))
        secrets.append(drawn.log[-1])
    masking = offload.connect(accepts)
    tiles = [
        [replace(tile, ciphertext=bytes(tile.ciphertext)) for tile in shares]
        for shares in masking.encode()
    ]
    by_worker = [tuple(each) for each in zip(*tiles, strict=True)] + [()]
    seeds = (None, None, masking.seed())
    lines = tuple(
        _answered(Line(*each, answer=Answer(b"", b"")))
        for each in zip(offload.offers, accepts, secrets, by_worker, seeds, strict=True)
    )
    partial = masking.decode([each.answer for each in lines])
    if not isinstance(partial, Partial):
        raise SystemExit("the workers' answers do not decode")
    return lines, partial


def _answered(line: Line) -> Line:
    worker = Computing(line.offer, line.channel, gram.NumpyKernel())
    for tile in line.tiles:
        worker.add(tile)
    if line.seed is not None:
        worker.add_seed(line.seed)
    return replace(line, answer=worker.answer())

"""The client mod: if it is a node's first mod, only sealed updates leave the node.

It verifies the enclave and the model before the app sees either, and takes the app's reply last,
after every other mod. A failure in Ostraka, in a mod or in the app becomes an error reply without
data: Flower itself would send the text of the exception.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Error, Message, MessageType, RecordDict
from flwr.clientapp.typing import ClientAppCallable, Mod
from flwr.common.constant import ErrorCode

from ostraka.arrays import AnyArray, Float32
from ostraka.carried.messages import ASK, is_poll
from ostraka.carried.node import DEFAULT_RESENDS, Node, reminder
from ostraka.config import Federation, Manifest
from ostraka.core.metrics import Asked, Values
from ostraka.errors import (
    ConfigError,
    MalformedMessage,
    OstrakaError,
    RemoteProtocolError,
    RolledBack,
    ServiceError,
)
from ostraka.flower import records
from ostraka.flower.grid import LOG
from ostraka.flower.options import NodeOptions
from ostraka.flower.records import RECORD, message_record, read_message
from ostraka.protocol.client import require_model

_LOCAL = "ostraka.local"  # integer arrays of the app, in the context
_FAILED = "the app failed; the node's log says why"
_UNFIT = "the node is not set up for this; its log says why"

Arrays: TypeAlias = dict[str, AnyArray]


def sealing_mod(
    policy: str | None = None,
    *,
    key: str | None = None,
    name: str | None = None,
    memory: str | None = None,
    unsafe_simulation: bool = False,
    disclose_metrics: bool = False,
    resends: int = DEFAULT_RESENDS,
    report_metrics: str = "",
) -> Mod:
    """Make a mod for `ClientApp(mods=[sealing_mod(...), ...])`. It has to be the first mod.

    policy: the file that says what is accepted as an enclave, or UNSAFE_SIMULATION for a trial.
    key, name: who this node is, as it is enrolled; the name is by default that of the key's file.
    memory: what is kept between rounds, by default beside the key. unsafe_simulation: accept an
    enclave that no TEE protects, if the policy does too. disclose_metrics: let metrics of training
    and of evaluation through in the clear; otherwise evaluation is refused. resends: how often this
    node seals again for a round that was opened again. report_metrics: which numbers of the app's
    MetricRecord to seal with the update, such as "loss=train_loss accuracy examples": each metric
    with the app's key for it, unless that is the same (num-examples for examples). Where the
    federation's terms name them, their mean over all nodes is published.

    A node's own config (`ostraka-policy`, `ostraka-key`, ...) replaces all of these.
    """
    given = NodeOptions(
        policy, key, name, memory, unsafe_simulation, disclose_metrics, resends, report_metrics
    )

    def mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        try:
            return _answer(message, context, call_next, given)
        except (RemoteProtocolError, ServiceError) as refused:
            for note in getattr(refused, "__notes__", ()):
                LOG.warning("%s", note)
            return _refusal(message, str(refused))
        except OstrakaError as unfit:
            # It is about this node's own files, so only the node's own log has it.
            LOG.error("%s", unfit)
            return _refusal(message, _UNFIT)
        except Exception:  # noqa: BLE001 (the text of an exception may hold data)
            LOG.exception("the app failed")
            return _refusal(message, _FAILED)

    return mod


def _answer(
    message: Message, context: Context, call_next: ClientAppCallable, given: NodeOptions
) -> Message:
    options = given.at(context)
    node = options.node(context)
    category = message.metadata.message_type.partition(".")[0]
    if category not in {MessageType.TRAIN, MessageType.EVALUATE}:
        raise RemoteProtocolError(f"a reply to {category!r} would leave this node unsealed")
    carried = read_message(message.content)
    if carried == ASK:
        return Message(RecordDict({RECORD: message_record(node.greet())}), reply_to=message)
    app = _App(message, context, call_next)
    if category == MessageType.EVALUATE:
        content = _evaluate(app, node, carried, disclose_metrics=options.disclose_metrics)
        return Message(content, reply_to=message)
    try:
        if is_poll(carried):
            content = _confirm(node, carried)
        else:
            content = _train(app, node, carried, options)
    except RolledBack as copied:
        LOG.error("%s", copied)
        content = RecordDict({RECORD: message_record(reminder(copied))})
    return Message(content, reply_to=message)


@dataclass(frozen=True)
class _App:
    """The app behind this mod, and the message to it."""

    message: Message
    context: Context
    call_next: ClientAppCallable

    def require_model(self, digest: bytes, federation: Federation) -> tuple[str, Arrays, Float32]:
        """Return the model in the message: its record's name, its arrays, and its vector (d,).

        Raises RemoteProtocolError unless it is the model of this digest.
        """
        try:
            key, arrays = _only_arrays(self.message)
            model = records.vector_of(arrays, federation.terms.manifest)
        except ConfigError as unfit:
            raise RemoteProtocolError(f"the model: {unfit}") from None
        require_model(model, digest, federation)
        return key, arrays, model

    def run(self, key: str, arrays: Arrays, manifest: Manifest) -> Message:
        """Show the app a verified model and its config, and return its reply."""
        content = {name: record for name, record in self.message.content.items() if name != RECORD}
        shown = records.for_app(arrays, self._local(), manifest)
        self.message.content = RecordDict(content | {key: shown})
        answer = self.call_next(self.message, self.context)
        if answer.has_error():
            # Another mod has refused. Its reason may hold data as well.
            LOG.error("a mod or the app answered with an error: %s", answer.error.reason)
            raise RemoteProtocolError(_FAILED)
        return answer

    def keep(self, stays: Arrays) -> None:
        """Keep the app's integer arrays for the next round."""
        if stays:
            own = {name: Array(np.asarray(array)) for name, array in stays.items()}
            self.context.state[_LOCAL] = ArrayRecord(own)

    def _local(self) -> Arrays:
        kept = self.context.state.get(_LOCAL)
        return records.read_arrays(kept) if isinstance(kept, ArrayRecord) else {}


def _confirm(node: Node, carried: bytes) -> RecordDict:
    """Return the node's one vote for an outcome. The app has no part in it."""
    voted = node.confirm(carried)
    LOG.info("confirmed the outcome of round %d", voted.number)
    if voted.left_out:
        LOG.warning("nothing shows that this node's update counts in round %d", voted.number)
    return RecordDict({RECORD: message_record(voted.message)})


def _train(app: _App, node: Node, carried: bytes, options: NodeOptions) -> RecordDict:
    """Return the sealed update with the next challenge, and the app's metrics if disclosed."""
    chosen = options.reported()
    part = node.join(carried)
    manifest, offer = part.federation.terms.manifest, part.joined.offer
    key, arrays, model = app.require_model(offer.model, part.federation)
    answer = app.run(key, arrays, manifest)
    with _keeping_back(ConfigError, RemoteProtocolError):
        _, trained = _only_arrays(answer)
        update, stays = records.difference(trained, model, manifest)
        content = _metrics(answer) if options.disclose_metrics else RecordDict()
    app.keep(stays)
    with _keeping_back(ConfigError):  # A value beyond the format of uploads.
        sealed = node.seal(part, update, _reported(answer, chosen, part.federation.terms.asked))
    content[RECORD] = message_record(sealed)
    LOG.info("sealed an update for round %d", offer.number)
    return content


def _evaluate(app: _App, node: Node, carried: bytes, *, disclose_metrics: bool) -> RecordDict:
    """Return metrics of a model that the enclave has published, if the node's owner agrees.

    Metrics of any other model would answer questions about this node's data.
    """
    if not disclose_metrics:
        raise RemoteProtocolError("metrics of this node's data are not disclosed")
    federation, digest = node.published_model(carried)
    key, arrays, _ = app.require_model(digest, federation)
    return _metrics(app.run(key, arrays, federation.terms.manifest))


@contextmanager
def _keeping_back(*kinds: type[OstrakaError]) -> Iterator[None]:
    """Log what is wrong with the app's reply, and do not send it: it could tell about data."""
    try:
        yield
    except kinds as unfit:
        LOG.error("the app's reply: %s", unfit)
        raise RemoteProtocolError(_FAILED) from None


def _only_arrays(message: Message) -> tuple[str, Arrays]:
    """Return the one record of arrays in a message, and its name. Raises MalformedMessage."""
    found = {key: each for key, each in message.content.array_records.items() if key != RECORD}
    if len(found) != 1:
        raise MalformedMessage(f"a message has one record of arrays; got {len(found)}")
    ((key, record),) = found.items()
    return key, records.read_arrays(record)


def _reported(answer: Message, chosen: dict[str, str], asked: Asked) -> Values | None:
    """Return what is sealed of the app's metrics. Metrics that do not fit keep no update back."""
    if not chosen or not asked.names:
        return None
    records = answer.content.metric_records.values()
    told = {
        key: value
        for record in records
        for key, value in record.items()
        if not isinstance(value, list)
    }
    values = {name: told[key] for name, key in chosen.items() if key in told}
    try:
        asked.write(values)
    except ConfigError as unfit:
        LOG.warning("this node reports no metrics: %s", unfit)
        return None
    return values


def _metrics(answer: Message) -> RecordDict:
    return RecordDict(dict(answer.content.metric_records))


def _refusal(message: Message, why: str) -> Message:
    LOG.warning("nothing is sent: %s", why)
    return Message(Error(ErrorCode.MOD_FAILED_PRECONDITION, why), reply_to=message)

"""The client mod: nothing that is not sealed leaves a node on which it is the first.

It verifies the enclave and the model before the app sees either, and takes the app's reply last,
after every other mod. Whatever goes wrong, in Ostraka, in a mod or in the app, becomes an error
reply without data: Flower itself would send the text of the exception.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    MessageType,
    RecordDict,
)
from flwr.clientapp.typing import ClientAppCallable, Mod
from flwr.common.constant import ErrorCode

from ostraka.arrays import AnyArray
from ostraka.carried.node import Node, require_nonce
from ostraka.carried.node_state import scratch
from ostraka.config import Manifest
from ostraka.errors import (
    ConfigError,
    MalformedMessage,
    OstrakaError,
    RemoteProtocolError,
    ServiceError,
)
from ostraka.flower import records
from ostraka.flower.messages import (
    RECORD,
    SEALED,
    Links,
    Proof,
    hello_record,
    is_ask,
    read_proof,
    sealed_record,
)
from ostraka.flower.options import DEFAULT_RESENDS, Options
from ostraka.protocol.client import require_model

_LOG = logging.getLogger("flwr.ostraka")
_LOCAL = "ostraka.local"  # integer arrays of the app, in the context
_NONCE = "nonce"
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
) -> Mod:
    """A mod for `ClientApp(mods=[sealing_mod(...), ...])`, which has to be the first.

    policy: the file that says what is accepted as an enclave, or UNSAFE_SIMULATION for a trial.
    key, name: who this node is, as it is enrolled; unless given, the name is that of the key's
    file. memory: what is kept between rounds, by default beside the key. unsafe_simulation: accept
    an enclave that no TEE protects, if the policy does, too. disclose_metrics: let metrics through
    in the clear, of training and of evaluation; unless that is set, evaluation is refused.
    resends: how often an update goes to a round that was opened again.

    A node's own config (`ostraka-policy`, `ostraka-key`, ...) replaces all of these.
    """
    given = Options(policy, key, name, memory, unsafe_simulation, disclose_metrics, resends)

    def mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        try:
            return _answer(message, context, call_next, given)
        except (RemoteProtocolError, ServiceError) as refused:
            for note in getattr(refused, "__notes__", ()):
                _LOG.warning("%s", note)
            return _refusal(message, str(refused))
        except OstrakaError as unfit:
            # About this node's own files, which are nobody else's business.
            _LOG.error("%s", unfit)
            return _refusal(message, _UNFIT)
        except Exception:  # noqa: BLE001 (the text of an exception may hold data)
            _LOG.exception("the app failed")
            return _refusal(message, _FAILED)

    return mod


def _answer(
    message: Message, context: Context, call_next: ClientAppCallable, given: Options
) -> Message:
    options = given.at(context)
    node = options.node(context)
    category = message.metadata.message_type.partition(".")[0]
    if is_ask(message.content):
        return _greet(message, context, node)
    if category == MessageType.TRAIN:
        return _Training(message, context, call_next, options, node).reply()
    if category == MessageType.EVALUATE:
        return _evaluate(message, context, call_next, options, node)
    raise RemoteProtocolError(f"a reply to {category!r} would leave this node unsealed")


def _greet(message: Message, context: Context, node: Node) -> Message:
    return Message(RecordDict({RECORD: _challenge(context, node)}), reply_to=message)


def _challenge(context: Context, node: Node) -> ConfigRecord:
    """Under a new nonce, the only one that counts from here on."""
    hello = node.challenge()
    scratch(context)[_NONCE] = hello.challenge.nonce
    return hello_record(hello)


@dataclass(frozen=True)
class _Training:
    message: Message
    context: Context
    call_next: ClientAppCallable
    options: Options
    node: Node

    def reply(self) -> Message:
        """The sealed update, the next challenge, and with `disclose_metrics` the app's metrics."""
        nonce = require_nonce(scratch(self.context).pop(_NONCE, None))
        joined = self.node.join(read_proof(Proof, self.message.content), nonce)
        manifest = joined.client.federation.terms.manifest
        with _naming("the model"):
            key, arrays = _only_arrays(self.message)
            model = records.vector_of(arrays, manifest)
        require_model(model, joined.offer.model, joined.client.federation)

        _show(self.message, key, arrays, self.context, manifest)
        answer = _run(self.call_next, self.message, self.context)
        with _keeping_back():
            _, trained = _only_arrays(answer)
            update, stays = records.difference(trained, model, manifest)
            content = _metrics(answer) if self.options.disclose_metrics else RecordDict()
        if stays:
            own = {name: Array(np.asarray(array)) for name, array in stays.items()}
            self.context.state[_LOCAL] = ArrayRecord(own)
        content[SEALED] = sealed_record(self.node.seal(joined, update, nonce))
        content[RECORD] = _challenge(self.context, self.node)
        _LOG.info("sealed an update for round %d", joined.offer.number)
        return Message(content, reply_to=self.message)


def _evaluate(
    message: Message,
    context: Context,
    call_next: ClientAppCallable,
    options: Options,
    node: Node,
) -> Message:
    """Metrics of a model that the enclave has published, if the node's owner discloses them.

    Of any other model they would answer questions about this node's data.
    """
    if not options.disclose_metrics:
        raise RemoteProtocolError("metrics of this node's data are not disclosed")
    federation, digest = node.published_model(read_proof(Links, message.content).links)
    with _naming("the model"):
        key, arrays = _only_arrays(message)
        model = records.vector_of(arrays, federation.terms.manifest)
    require_model(model, digest, federation)
    _show(message, key, arrays, context, federation.terms.manifest)
    answer = _run(call_next, message, context)
    return Message(_metrics(answer), reply_to=message)


def _show(message: Message, key: str, arrays: Arrays, context: Context, manifest: Manifest) -> None:
    """Leave in the message what the app is to see: a model that was verified, and its config."""
    kept = context.state.get(_LOCAL)
    local = records.read_arrays(kept) if isinstance(kept, ArrayRecord) else {}
    content = {name: record for name, record in message.content.items() if name != RECORD}
    message.content = RecordDict(content | {key: records.for_app(arrays, local, manifest)})


@contextmanager
def _naming(what: str) -> Iterator[None]:
    """Whoever made it may know what is wrong with it."""
    try:
        yield
    except ConfigError as unfit:
        raise RemoteProtocolError(f"{what}: {unfit}") from None


@contextmanager
def _keeping_back() -> Iterator[None]:
    """What is wrong with the app's reply stays here: shapes and overflows tell about its data."""
    try:
        yield
    except (ConfigError, RemoteProtocolError) as unfit:
        _LOG.error("the app's reply: %s", unfit)
        raise RemoteProtocolError(_FAILED) from None


def _run(call_next: ClientAppCallable, message: Message, context: Context) -> Message:
    answer = call_next(message, context)
    if answer.has_error():
        # Another mod's refusal. What it says may hold data as well.
        _LOG.error("a mod or the app answered with an error: %s", answer.error.reason)
        raise RemoteProtocolError(_FAILED)
    return answer


def _only_arrays(message: Message) -> tuple[str, Arrays]:
    """The one record of arrays in a message, and its name."""
    found = dict(message.content.array_records)
    if len(found) != 1:
        raise MalformedMessage(f"a message has one record of arrays; got {len(found)}")
    ((key, record),) = found.items()
    return key, records.read_arrays(record)


def _metrics(answer: Message) -> RecordDict:
    return RecordDict(dict(answer.content.metric_records))


def _refusal(message: Message, why: str) -> Message:
    _LOG.warning("nothing is sent: %s", why)
    return Message(Error(ErrorCode.MOD_FAILED_PRECONDITION, why), reply_to=message)

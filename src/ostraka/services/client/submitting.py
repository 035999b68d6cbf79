"""One update, brought to its round's outcome whatever fails on the way."""

from ostraka.arrays import Float32
from ostraka.errors import LocalProtocolError, ReceiptRefused, ServiceError
from ostraka.messages import Receipt
from ostraka.protocol.client import Joined, Submitted
from ostraka.services.client.delivering import deliver
from ostraka.services.client.events import Resending
from ostraka.services.client.following import require_same
from ostraka.services.client.results import Outcome
from ostraka.services.client.session import Session
from ostraka.transport.dial import Backoff

WITHOUT = "the round was published without this update"
ENDED = "the federation ended without this round"


def submit(session: Session, joined: Joined, update: Float32, *, resends: int) -> Outcome:
    """Seal an update (d,), send it, and wait for the receipt.

    When its round is void, the update goes under a fresh key to the round that replaces it, once
    that round's enclave has proved itself; resends: so many times after it had gone out whole. A
    host that restarts the enclave may have seen an aggregate with this update in it each time.
    """
    backoff, left = Backoff(), resends
    while True:
        submitted = joined.seal(update)
        delivery = deliver(session.connection, submitted, session.begun)
        left -= delivery.whole
        receipt = delivery.receipt
        if receipt is not None and receipt.round_id == joined.offer.round_id:
            return _published(session, submitted, receipt, begun=delivery.begun)
        again = _join_again(session, joined, receipt)
        if isinstance(again, Outcome):
            return again
        if left < 0:
            raise ServiceError(
                f"round {joined.offer.number} was opened again {resends + 1} times after this "
                "update had been sent: ask the operator why, before you submit it again"
            )
        joined = again
        session.connection.tell(Resending(joined.offer.number))
        session.connection.patience.sleep(backoff.next())


def _published(session: Session, submitted: Submitted, receipt: Receipt, *, begun: bool) -> Outcome:
    """The round that was joined is over. begun: see `Upload`."""
    joined = submitted.joined
    try:
        model = session.model(receipt.model, joined.client.federation)
    except ServiceError as gone:
        if gone.status != "NOT_FOUND":
            raise
        # Later rounds have replaced the model. The chain has the receipt all the same.
        receipt = _require_receipt(session, joined, receipt)
    else:
        session.remember(submitted.finish(receipt, model))
    rejected = {each.client: each.reason for each in receipt.rejected}
    reason = rejected.get(joined.client.name, None if begun else WITHOUT)
    return Outcome(receipt.number, reason is None, reason, receipt)


def _join_again(session: Session, joined: Joined, shown: Receipt | None) -> Joined | Outcome:
    """The round that replaces a void one, or why there is none.

    shown: the receipt of another round of this number, if the enclave has published one.
    """
    number = joined.offer.number
    session.catch_up(joined.offer)
    again = None
    if shown is None and session.last_number < number:
        again = session.join(joined.offer)
        session.catch_up(joined.offer)  # It may have been published while this client waited.
    if shown is not None or session.last_number >= number:
        return Outcome(number, False, WITHOUT, _require_receipt(session, joined, shown))
    if again is None:
        return Outcome(number, False, ENDED, None)
    if again.offer.number != number:
        raise ReceiptRefused(
            f"round {again.offer.number} is open, and nobody shows the receipt of round {number}"
        )
    if again.offer.model != joined.offer.model:
        raise ReceiptRefused(
            f"round {number} was opened again from another model: fetch that, and train anew"
        )
    return again


def _require_receipt(session: Session, joined: Joined, shown: Receipt | None) -> Receipt:
    """The chain's receipt for the round that was joined. Raises Fork if another was shown."""
    number = joined.offer.number
    if session.receipt(number) is None:
        session.catch_up(joined.offer)
    held = session.receipt(number)
    if held is None and session.last_number > number:
        raise LocalProtocolError(
            f"another process of this client went on after round {number}: run one at a time"
        )
    if held is None:
        raise ReceiptRefused(f"a receipt of round {number} was shown that is not in the chain")
    if shown is not None:
        require_same(held, shown, joined.attested.receipt_key)
    return held

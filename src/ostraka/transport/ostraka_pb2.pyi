from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GreetRequest(_message.Message):
    __slots__ = ("hello", "ticket_digest")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    TICKET_DIGEST_FIELD_NUMBER: _ClassVar[int]
    hello: bytes
    ticket_digest: bytes
    def __init__(self, hello: _Optional[bytes] = ..., ticket_digest: _Optional[bytes] = ...) -> None: ...

class GreetReply(_message.Message):
    __slots__ = ("nonce",)
    NONCE_FIELD_NUMBER: _ClassVar[int]
    nonce: bytes
    def __init__(self, nonce: _Optional[bytes] = ...) -> None: ...

class CharterRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CharterReply(_message.Message):
    __slots__ = ("charter",)
    CHARTER_FIELD_NUMBER: _ClassVar[int]
    charter: bytes
    def __init__(self, charter: _Optional[bytes] = ...) -> None: ...

class IntroduceRequest(_message.Message):
    __slots__ = ("challenge", "holds", "ticket_digest")
    CHALLENGE_FIELD_NUMBER: _ClassVar[int]
    HOLDS_FIELD_NUMBER: _ClassVar[int]
    TICKET_DIGEST_FIELD_NUMBER: _ClassVar[int]
    challenge: bytes
    holds: bytes
    ticket_digest: bytes
    def __init__(self, challenge: _Optional[bytes] = ..., holds: _Optional[bytes] = ..., ticket_digest: _Optional[bytes] = ...) -> None: ...

class IntroduceReply(_message.Message):
    __slots__ = ("introduction", "charter")
    INTRODUCTION_FIELD_NUMBER: _ClassVar[int]
    CHARTER_FIELD_NUMBER: _ClassVar[int]
    introduction: bytes
    charter: bytes
    def __init__(self, introduction: _Optional[bytes] = ..., charter: _Optional[bytes] = ...) -> None: ...

class ProveRequest(_message.Message):
    __slots__ = ("challenge",)
    CHALLENGE_FIELD_NUMBER: _ClassVar[int]
    challenge: bytes
    def __init__(self, challenge: _Optional[bytes] = ...) -> None: ...

class ProveReply(_message.Message):
    __slots__ = ("receipt_key", "evidence")
    RECEIPT_KEY_FIELD_NUMBER: _ClassVar[int]
    EVIDENCE_FIELD_NUMBER: _ClassVar[int]
    receipt_key: bytes
    evidence: bytes
    def __init__(self, receipt_key: _Optional[bytes] = ..., evidence: _Optional[bytes] = ...) -> None: ...

class TicketRequest(_message.Message):
    __slots__ = ("ticket_digest",)
    TICKET_DIGEST_FIELD_NUMBER: _ClassVar[int]
    ticket_digest: bytes
    def __init__(self, ticket_digest: _Optional[bytes] = ...) -> None: ...

class TicketReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class UploadRequest(_message.Message):
    __slots__ = ("header", "await_outcome")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    AWAIT_OUTCOME_FIELD_NUMBER: _ClassVar[int]
    header: bytes
    await_outcome: bool
    def __init__(self, header: _Optional[bytes] = ..., await_outcome: _Optional[bool] = ...) -> None: ...

class UploadReply(_message.Message):
    __slots__ = ("granted", "complete", "outcome", "refused")
    GRANTED_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    granted: Granted
    complete: Complete
    outcome: OutcomeReply
    refused: Refused
    def __init__(self, granted: _Optional[_Union[Granted, _Mapping]] = ..., complete: _Optional[_Union[Complete, _Mapping]] = ..., outcome: _Optional[_Union[OutcomeReply, _Mapping]] = ..., refused: _Optional[_Union[Refused, _Mapping]] = ...) -> None: ...

class Granted(_message.Message):
    __slots__ = ("next", "shards")
    NEXT_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    next: int
    shards: _containers.RepeatedCompositeFieldContainer[ShardLane]
    def __init__(self, next: _Optional[int] = ..., shards: _Optional[_Iterable[_Union[ShardLane, _Mapping]]] = ...) -> None: ...

class Refused(_message.Message):
    __slots__ = ("code", "why")
    CODE_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    code: int
    why: str
    def __init__(self, code: _Optional[int] = ..., why: _Optional[str] = ...) -> None: ...

class ShardLane(_message.Message):
    __slots__ = ("address", "ticket", "next")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    TICKET_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    address: str
    ticket: bytes
    next: int
    def __init__(self, address: _Optional[str] = ..., ticket: _Optional[bytes] = ..., next: _Optional[int] = ...) -> None: ...

class Complete(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class OutcomeRequest(_message.Message):
    __slots__ = ("number", "round_id", "leaf", "voter")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    ROUND_ID_FIELD_NUMBER: _ClassVar[int]
    LEAF_FIELD_NUMBER: _ClassVar[int]
    VOTER_FIELD_NUMBER: _ClassVar[int]
    number: int
    round_id: bytes
    leaf: bytes
    voter: str
    def __init__(self, number: _Optional[int] = ..., round_id: _Optional[bytes] = ..., leaf: _Optional[bytes] = ..., voter: _Optional[str] = ...) -> None: ...

class OutcomeReply(_message.Message):
    __slots__ = ("certified", "void", "pending", "proposed", "rolled_back", "published")
    CERTIFIED_FIELD_NUMBER: _ClassVar[int]
    VOID_FIELD_NUMBER: _ClassVar[int]
    PENDING_FIELD_NUMBER: _ClassVar[int]
    PROPOSED_FIELD_NUMBER: _ClassVar[int]
    ROLLED_BACK_FIELD_NUMBER: _ClassVar[int]
    PUBLISHED_FIELD_NUMBER: _ClassVar[int]
    certified: bytes
    void: Void
    pending: Pending
    proposed: Proposed
    rolled_back: bytes
    published: Published
    def __init__(self, certified: _Optional[bytes] = ..., void: _Optional[_Union[Void, _Mapping]] = ..., pending: _Optional[_Union[Pending, _Mapping]] = ..., proposed: _Optional[_Union[Proposed, _Mapping]] = ..., rolled_back: _Optional[bytes] = ..., published: _Optional[_Union[Published, _Mapping]] = ...) -> None: ...

class Proposed(_message.Message):
    __slots__ = ("proposal", "path", "included")
    PROPOSAL_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    INCLUDED_FIELD_NUMBER: _ClassVar[int]
    proposal: bytes
    path: _containers.RepeatedScalarFieldContainer[bytes]
    included: bool
    def __init__(self, proposal: _Optional[bytes] = ..., path: _Optional[_Iterable[bytes]] = ..., included: _Optional[bool] = ...) -> None: ...

class ConfirmRequest(_message.Message):
    __slots__ = ("confirmation", "then", "next")
    CONFIRMATION_FIELD_NUMBER: _ClassVar[int]
    THEN_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    confirmation: bytes
    then: OutcomeRequest
    next: IntroduceRequest
    def __init__(self, confirmation: _Optional[bytes] = ..., then: _Optional[_Union[OutcomeRequest, _Mapping]] = ..., next: _Optional[_Union[IntroduceRequest, _Mapping]] = ...) -> None: ...

class ConfirmReply(_message.Message):
    __slots__ = ("outcome", "model", "introduced")
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    INTRODUCED_FIELD_NUMBER: _ClassVar[int]
    outcome: OutcomeReply
    model: bytes
    introduced: IntroduceReply
    def __init__(self, outcome: _Optional[_Union[OutcomeReply, _Mapping]] = ..., model: _Optional[bytes] = ..., introduced: _Optional[_Union[IntroduceReply, _Mapping]] = ...) -> None: ...

class RemindRequest(_message.Message):
    __slots__ = ("proposal",)
    PROPOSAL_FIELD_NUMBER: _ClassVar[int]
    proposal: bytes
    def __init__(self, proposal: _Optional[bytes] = ...) -> None: ...

class RemindReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Void(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Published(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Pending(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ChainRequest(_message.Message):
    __slots__ = ("after", "newest")
    AFTER_FIELD_NUMBER: _ClassVar[int]
    NEWEST_FIELD_NUMBER: _ClassVar[int]
    after: int
    newest: bool
    def __init__(self, after: _Optional[int] = ..., newest: _Optional[bool] = ...) -> None: ...

class ChainLink(_message.Message):
    __slots__ = ("charter", "certified", "abandon")
    CHARTER_FIELD_NUMBER: _ClassVar[int]
    CERTIFIED_FIELD_NUMBER: _ClassVar[int]
    ABANDON_FIELD_NUMBER: _ClassVar[int]
    charter: bytes
    certified: bytes
    abandon: bytes
    def __init__(self, charter: _Optional[bytes] = ..., certified: _Optional[bytes] = ..., abandon: _Optional[bytes] = ...) -> None: ...

class ModelRequest(_message.Message):
    __slots__ = ("digest",)
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    digest: bytes
    def __init__(self, digest: _Optional[bytes] = ...) -> None: ...

class ModelReply(_message.Message):
    __slots__ = ("slices",)
    SLICES_FIELD_NUMBER: _ClassVar[int]
    slices: _containers.RepeatedCompositeFieldContainer[ModelSlice]
    def __init__(self, slices: _Optional[_Iterable[_Union[ModelSlice, _Mapping]]] = ...) -> None: ...

class ModelSlice(_message.Message):
    __slots__ = ("address", "length", "ticket")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    TICKET_FIELD_NUMBER: _ClassVar[int]
    address: str
    length: int
    ticket: bytes
    def __init__(self, address: _Optional[str] = ..., length: _Optional[int] = ..., ticket: _Optional[bytes] = ...) -> None: ...

class ShardSays(_message.Message):
    __slots__ = ("hello", "sealed")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    SEALED_FIELD_NUMBER: _ClassVar[int]
    hello: bytes
    sealed: Sealed
    def __init__(self, hello: _Optional[bytes] = ..., sealed: _Optional[_Union[Sealed, _Mapping]] = ...) -> None: ...

class Sealed(_message.Message):
    __slots__ = ("messages",)
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, messages: _Optional[_Iterable[bytes]] = ...) -> None: ...

class LeadSays(_message.Message):
    __slots__ = ("welcome", "admitted", "sealed")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    ADMITTED_FIELD_NUMBER: _ClassVar[int]
    SEALED_FIELD_NUMBER: _ClassVar[int]
    welcome: bytes
    admitted: bytes
    sealed: Sealed
    def __init__(self, welcome: _Optional[bytes] = ..., admitted: _Optional[bytes] = ..., sealed: _Optional[_Union[Sealed, _Mapping]] = ...) -> None: ...

class WorkerSays(_message.Message):
    __slots__ = ("hello", "accept", "answer", "sorry", "answer_piece")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    ACCEPT_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    SORRY_FIELD_NUMBER: _ClassVar[int]
    ANSWER_PIECE_FIELD_NUMBER: _ClassVar[int]
    hello: bytes
    accept: bytes
    answer: bytes
    sorry: str
    answer_piece: AnswerPiece
    def __init__(self, hello: _Optional[bytes] = ..., accept: _Optional[bytes] = ..., answer: _Optional[bytes] = ..., sorry: _Optional[str] = ..., answer_piece: _Optional[_Union[AnswerPiece, _Mapping]] = ...) -> None: ...

class AnswerPiece(_message.Message):
    __slots__ = ("attempt_id", "data")
    ATTEMPT_ID_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    attempt_id: bytes
    data: bytes
    def __init__(self, attempt_id: _Optional[bytes] = ..., data: _Optional[bytes] = ...) -> None: ...

class EnclaveSays(_message.Message):
    __slots__ = ("welcome", "offer", "share", "seed", "over", "share_piece", "proof")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    OFFER_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    OVER_FIELD_NUMBER: _ClassVar[int]
    SHARE_PIECE_FIELD_NUMBER: _ClassVar[int]
    PROOF_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    offer: bytes
    share: bytes
    seed: bytes
    over: Over
    share_piece: bytes
    proof: Proof
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., offer: _Optional[bytes] = ..., share: _Optional[bytes] = ..., seed: _Optional[bytes] = ..., over: _Optional[_Union[Over, _Mapping]] = ..., share_piece: _Optional[bytes] = ..., proof: _Optional[_Union[Proof, _Mapping]] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("nonce", "receipt_key", "federation", "deputy")
    NONCE_FIELD_NUMBER: _ClassVar[int]
    RECEIPT_KEY_FIELD_NUMBER: _ClassVar[int]
    FEDERATION_FIELD_NUMBER: _ClassVar[int]
    DEPUTY_FIELD_NUMBER: _ClassVar[int]
    nonce: bytes
    receipt_key: bytes
    federation: bytes
    deputy: bytes
    def __init__(self, nonce: _Optional[bytes] = ..., receipt_key: _Optional[bytes] = ..., federation: _Optional[bytes] = ..., deputy: _Optional[bytes] = ...) -> None: ...

class Proof(_message.Message):
    __slots__ = ("charter", "evidence")
    CHARTER_FIELD_NUMBER: _ClassVar[int]
    EVIDENCE_FIELD_NUMBER: _ClassVar[int]
    charter: bytes
    evidence: bytes
    def __init__(self, charter: _Optional[bytes] = ..., evidence: _Optional[bytes] = ...) -> None: ...

class Over(_message.Message):
    __slots__ = ("attempt_id",)
    ATTEMPT_ID_FIELD_NUMBER: _ClassVar[int]
    attempt_id: bytes
    def __init__(self, attempt_id: _Optional[bytes] = ...) -> None: ...

class AdoptRequest(_message.Message):
    __slots__ = ("charter",)
    CHARTER_FIELD_NUMBER: _ClassVar[int]
    charter: bytes
    def __init__(self, charter: _Optional[bytes] = ...) -> None: ...

class AdoptReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ("token",)
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    token: str
    def __init__(self, token: _Optional[str] = ...) -> None: ...

class StatusReply(_message.Message):
    __slots__ = ("json",)
    JSON_FIELD_NUMBER: _ClassVar[int]
    json: str
    def __init__(self, json: _Optional[str] = ...) -> None: ...

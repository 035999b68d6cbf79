"""The confirmation of rounds as a state machine, and a search of every state that it can reach.

An outcome leaves the enclave when more than (n + f)/2 of the n clients have confirmed it. This file
says what that has to withstand, and tries all of it. The host schedules everything: it clones the
enclave, crashes it, rolls it back to any state that it ever sealed, and delivers a message at any
time, any number of times, to any copy, or never. Byzantine clients have voted for everything from
the start. The authority abandons numbers, and announces one change of the roster, of which a copy
learns when the host likes.

What must hold, in every state that can be reached:

(1) FORK: no two different outcomes of one number are released.
(2) TWICE: no update of an honest client is in two released outcomes.
(3) UNDONE: no number is released that was abandoned as one that nobody can have released.

There are two machines, over the same rules (`Setting`):

- `Copies` has it all: two copies with their durable images, proposals, votes on their way, clients
  that follow the chain, write down and sign. It is what to read first. It grows too fast for five
  clients.
- `Votes` keeps only what cannot be taken back: the votes that were signed, the outcomes that were
  released, the numbers that were abandoned. It reaches n = 5. Why that loses nothing:

  * The host can restart a copy from any image that was ever sealed. So the state that a copy is in
    excludes nothing; what counts is which images exist. The image in front of a number exists once
    the number before it has a result. A pending image is made from it whenever the host likes, and
    nobody notices. So the images follow from the results.
  * A signed vote can reach any copy at any later time. A copy only counts votes, so it can release
    once enough are signed. A release forbids nothing to anybody, so it is taken at once.
  * A client follows the chain when it votes on top of it. To follow earlier takes choices away.
  * An amnesiac client forgets at once: to remember takes choices away.

  A test compares the two machines: they reach the same votes, releases and abandoned numbers.

What both leave out, since nothing in the protocol depends on it:

- Whose updates are in an outcome. One client is watched. An outcome has its update or not, which
  also makes two outcomes of a number differ. Its update of a number can be had for any opening of
  that number, because it is sent again on request. Where it is not enrolled, take another's.
- Failures: a null step is an outcome like any other.
- `RolledBack`: a copy that is shown a proposal that it does not know stops. The host does not show
  it.
- Names of clients: those that behave alike are counted, or sorted.
"""

from __future__ import annotations

import itertools
from collections import Counter, deque
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, Protocol, TypeVar

NUMBERS = (1, 2)

FORK = "two outcomes of one number are released"
TWICE = "an update is in two released outcomes"
UNDONE = "a number that was abandoned as unreleased is released"
VIOLATIONS = (FORK, TWICE, UNDONE)


class Broken(Enum):
    """One mistake each, which the search has to find, except for the last two.

    An owner's word is allowed by the protocol; tests say when it is safe. A pending outcome that is
    not durable breaks no property: it costs an honest host the number, once it crashes.
    """

    NOTHING = "the protocol as it is"
    QUORUM_LOWERED = "one vote fewer is enough"
    NEWEST_CHARTER = "the quorum is of the charter that the copy knows, not the one that rules"
    RESENT_ELSEWHERE = "an update is sent again into another number, its receipt not seen"
    SIGNED_UNWRITTEN = "a client signs its vote before it has written it down"
    NONE_NOT_BINDING = "a client that has answered `none` votes for a proposal later"
    PROOF_WITHOUT_F = "an Abandon's proof allows for the silent clients, but not for liars"
    UNPROVEN_TAKEN = "an Abandon without its proof is taken for one that has it"
    OWNERS_WORD = "every owner lets its client go on after an Abandon without its proof"
    PENDING_VOLATILE = "an outcome is proposed and released before it is durable"


class Outcome(NamedTuple):
    """The receipt of a number. `charter` is the one that it names, which rules the next number."""

    number: int
    parent: Result | None
    charter: int
    update: int
    """The number that the watched client made its update for; 0 if the outcome is without it."""

    def __str__(self) -> str:
        update = f"with the update of number {self.update}" if self.update else "without the update"
        after = "" if self.parent is None else f", after [{self.parent}]"
        names = ", naming charter 1" if self.charter else ""
        return f"outcome {self.number} {update}{names}{after}"


class Abandon(NamedTuple):
    """The authority's word that a number ends without an outcome. The charter stays as it was."""

    number: int
    parent: Result | None
    proven: bool

    @property
    def charter(self) -> int:
        return named_by(self.parent)

    def __str__(self) -> str:
        return f"Abandon of {self.number} {'with' if self.proven else 'without'} its proof"


class Nothing(NamedTuple):
    """The vote `none`: this client will not confirm any outcome of the number."""

    number: int

    def __str__(self) -> str:
        return f"`none` for {self.number}"


Result = Outcome | Abandon
"""What the chain has at a number. None stands for the founding, which is number 0."""

Vote = Outcome | Nothing

Words = tuple[object, ...]
"""What a step does, in words that are only joined when somebody reads them."""

Signed = list[tuple[str, frozenset[Vote]]]
"""The kind of each client, with all the votes that it has signed."""


def named_by(result: Result | None) -> int:
    """The charter that a result names; the founding one is charter 0."""
    return 0 if result is None else result.charter


def number_of(item: Result | Vote | None) -> int:
    return 0 if item is None else item.number


class Public(NamedTuple):
    """What the host has obtained for good."""

    released: frozenset[Outcome] = frozenset()
    abandoned: frozenset[Abandon] = frozenset()


@dataclass(frozen=True)
class Setting:
    """Who takes part, and the rules that clients, copies and the authority keep.

    Charter 0 has the clients that stay and those that leave, charter 1 those that stay and those
    that join. Byzantine and amnesiac clients stay. `f` is what the charters allow for; it may be
    wrong.
    """

    stay: int
    leave: int = 0
    join: int = 0
    byzantine: int = 0
    amnesiac: int = 0
    f: int = 0
    broken: Broken = Broken.NOTHING
    silent: bool = False
    """The Byzantine clients do not vote at all."""
    authority: bool = True
    """The authority asks clients for their votes and abandons numbers."""
    both_rosters: bool = False
    """After an Abandon without its proof the clients of both charters have to confirm."""

    def __str__(self) -> str:
        parts = [f"n = {self.n(0)}, f = {self.f}"]
        kinds = ("leave", "join", "byzantine", "amnesiac")
        parts += [f"{getattr(self, kind)} {kind}" for kind in kinds if getattr(self, kind)]
        if self.broken is not Broken.NOTHING:
            parts.append(self.broken.value)
        return ", ".join(parts)

    def kinds(self) -> list[str]:
        """The kind of each client whose votes have to be followed one by one."""
        kinds = ("stay", "leave", "join", "amnesiac")
        return [kind for kind in kinds for _ in range(getattr(self, kind))]

    # Rosters and quorums.

    def n(self, charter: int) -> int:
        return self.byzantine + self.amnesiac + self.stay + (self.leave, self.join)[charter]

    def quorum(self, charter: int) -> int:
        """The least count of more than (n + f)/2."""
        lowered = self.broken is Broken.QUORUM_LOWERED
        return (self.n(charter) + self.f) // 2 + 1 - lowered

    def enrolled(self, kind: str, charter: int) -> bool:
        """Whether a client of this kind is on a charter's roster."""
        return kind not in (("join",), ("leave",))[charter]

    def rulers(self, parent: Result | None) -> tuple[int, ...]:
        """The charters that rule the number after a result; each needs its quorum."""
        unproven = isinstance(parent, Abandon) and not parent.proven
        return (0, 1) if self.both_rosters and unproven else (named_by(parent),)

    def electorate(self, outcome: Outcome) -> tuple[int, ...]:
        """The charters whose clients confirm: the one that the previous receipt names."""
        if self.broken is Broken.NEWEST_CHARTER:
            return (outcome.charter,)
        return self.rulers(outcome.parent)

    def may_vote(self, kind: str, charters: tuple[int, ...]) -> bool:
        return any(self.enrolled(kind, charter) for charter in charters)

    def confirmed(self, outcome: Outcome, kinds: list[str]) -> bool:
        """Whether clients of these kinds, with the Byzantine ones, are a quorum for the outcome."""
        return all(
            sum(self.enrolled(kind, charter) for kind in kinds) + self.free_votes()
            >= self.quorum(charter)
            for charter in self.electorate(outcome)
        )

    def free_votes(self) -> int:
        """The votes that every proposal has."""
        return 0 if self.silent else self.byzantine

    # The chain.

    def follows(self, abandon: Abandon) -> bool:
        """Whether honest clients go on from it."""
        return abandon.proven or self.broken in (Broken.UNPROVEN_TAKEN, Broken.OWNERS_WORD)

    def results(self, public: Public, number: int) -> list[Result | None]:
        """The results of a number that a client can be convinced of; normally one at most."""
        if number == 0:
            return [None]
        abandoned = [abandon for abandon in public.abandoned if self.follows(abandon)]
        found: Iterable[Result] = (*public.released, *abandoned)
        return [result for result in found if result.number == number]

    def charters(self, number: int, parent: Result | None) -> range:
        """The charters that an outcome may name; the last one's is used by nobody."""
        same = not (self.leave or self.join)
        if same or (number == NUMBERS[-1] and self.broken is not Broken.NEWEST_CHARTER):
            return range(1)
        return range(named_by(parent), 2)

    def outcomes(self, number: int, parent: Result | None) -> list[Outcome]:
        """All outcomes that a copy can make on top of a result."""
        elsewhere = self.broken is Broken.RESENT_ELSEWHERE
        updates = range(number + 1) if elsewhere else (0, number)
        charters = self.charters(number, parent)
        return [Outcome(number, parent, charter, made) for charter in charters for made in updates]

    # What clients and the authority do.

    def after_none(self, memory: Vote | None, number: int) -> Vote | None:
        """What a client remembers when it has answered `none`."""
        return memory if self.broken is Broken.NONE_NOT_BINDING else Nothing(number)

    def abandons(self, public: Public, signed: Signed) -> list[Abandon]:
        """What the authority can sign.

        Without a proof it can always sign. Nobody follows that (but see `follows`). After the last
        number there is nothing to follow, so there it is left out.
        """
        found = []
        for number in NUMBERS if self.authority else ():
            for parent in self.results(public, number - 1):
                if all(self.proof(number, charter, signed) for charter in self.rulers(parent)):
                    found.append(Abandon(number, parent, proven=True))
                if number != NUMBERS[-1]:
                    found.append(Abandon(number, parent, proven=False))
        return [abandon for abandon in found if abandon not in public.abandoned]

    def proof(self, number: int, charter: int, signed: Signed) -> bool:
        """Whether votes can be shown with votes(P) + silent + f <= (n + f)/2 for every P.

        A vote that is not shown counts against every P, so all are shown. The Byzantine clients
        show `none`. Who has signed several votes shows the one that suits the host.
        """
        n, f = self.n(charter), self.f
        doubt = 0 if self.broken is Broken.PROOF_WITHOUT_F else f
        ballots = [
            [vote for vote in votes if vote.number == number]
            for kind, votes in signed
            if self.enrolled(kind, charter)
        ]
        shown = [ballot for ballot in ballots if ballot]
        silent = len(ballots) - len(shown)
        if 2 * (silent + doubt) > n + f:
            return False
        for choice in itertools.product(*shown):
            votes = Counter(vote for vote in choice if isinstance(vote, Outcome))
            if 2 * (max(votes.values(), default=0) + silent + doubt) <= n + f:
                return True
        return False

    # What must never happen.

    def violations(self, public: Public) -> list[str]:
        numbers = Counter(outcome.number for outcome in public.released)
        updates = Counter(outcome.update for outcome in public.released if outcome.update)
        believed = [
            abandon.number
            for abandon in public.abandoned
            if abandon.proven or self.broken is Broken.UNPROVEN_TAKEN
        ]
        found = {
            FORK: max(numbers.values(), default=0) > 1,
            TWICE: max(updates.values(), default=0) > 1,
            UNDONE: any(number in numbers for number in believed),
        }
        return [violation for violation in VIOLATIONS if found[violation]]


# The machine that has only votes.


class Voter(NamedTuple):
    """A client: what it remembers, its vote of the highest number, and all that it ever signed."""

    kind: str
    memory: Vote | None = None
    signed: frozenset[Vote] = frozenset()


class VotesState(NamedTuple):
    """`voters` are sorted places in the machine's table of voters: compared faster than voters."""

    voters: tuple[int, ...]
    public: Public


@dataclass
class Votes:
    """The machine without copies; the head of this file says why they can be left out."""

    setting: Setting
    table: list[Voter] = field(default_factory=list)
    places: dict[Voter, int] = field(default_factory=dict)
    _proposals: dict[Public, list[Outcome]] = field(default_factory=dict)
    _moves: dict[tuple[int, Public], list[tuple[Words, int]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        quorums = self.setting.quorum(0), self.setting.quorum(1)
        self._least = min(quorums) - self.setting.free_votes()

    def start(self) -> VotesState:
        voters = sorted(self.place(Voter(kind)) for kind in self.setting.kinds())
        return VotesState(tuple(voters), Public())

    def public(self, state: VotesState) -> Public:
        return state.public

    def place(self, voter: Voter) -> int:
        if voter not in self.places:
            self.places[voter] = len(self.table)
            self.table.append(voter)
        return self.places[voter]

    def signed(self, state: VotesState) -> Signed:
        return [(self.table[place].kind, self.table[place].signed) for place in state.voters]

    def steps(self, state: VotesState) -> Iterator[tuple[Words, VotesState]]:
        """What can happen next, in words, and the state after it."""
        public = state.public
        ready = self.ready(state)
        if ready is not None:
            after = public._replace(released=public.released | {ready})
            yield ("a copy has a quorum and releases", ready), VotesState(state.voters, after)
            return
        for index, place in enumerate(state.voters):
            if index and state.voters[index - 1] == place:
                continue  # The same step of an equal client leads to the same state.
            others = state.voters[:index] + state.voters[index + 1 :]
            for words, moved in self.moves(place, public):
                yield words, VotesState(tuple(sorted((*others, moved))), public)
        for abandon in self.setting.abandons(public, self.signed(state)):
            after = public._replace(abandoned=public.abandoned | {abandon})
            yield ("the authority signs an", abandon), VotesState(state.voters, after)

    def proposals(self, public: Public) -> list[Outcome]:
        """All that some copy, restarted from some image, can propose."""
        if public not in self._proposals:
            self._proposals[public] = [
                outcome
                for number in NUMBERS
                for parent in self.setting.results(public, number - 1)
                for outcome in self.setting.outcomes(number, parent)
            ]
        return self._proposals[public]

    def ready(self, state: VotesState) -> Outcome | None:
        """An outcome that has its quorum and is not released yet."""
        kinds: dict[Vote, list[str]] = {}
        for place in state.voters:
            for vote in self.table[place].signed:
                kinds.setdefault(vote, []).append(self.table[place].kind)
        for outcome in self.proposals(state.public):
            voters = kinds.get(outcome, [])
            if len(voters) < self._least or outcome in state.public.released:
                continue
            if self.setting.confirmed(outcome, voters):
                return outcome
        return None

    def moves(self, place: int, public: Public) -> list[tuple[Words, int]]:
        """What one client can do, and its place afterwards."""
        if (place, public) not in self._moves:
            found = self._confirm(self.table[place], public)
            if self.setting.authority:
                found = itertools.chain(found, self._answer_none(self.table[place], public))
            self._moves[place, public] = [(words, self.place(voter)) for words, voter in found]
        return self._moves[place, public]

    def _confirm(self, voter: Voter, public: Public) -> Iterator[tuple[Words, Voter]]:
        """An honest client has one vote a number, and none below the highest that it voted on."""
        setting = self.setting
        for outcome in self.proposals(public):
            if outcome.number <= number_of(voter.memory):
                continue
            if not setting.may_vote(voter.kind, setting.electorate(outcome)):
                continue
            words = f"a client ({voter.kind}) confirms", outcome
            signed = voter.signed | {outcome}
            if voter.kind == "amnesiac":
                yield (*words, "and forgets it"), Voter(voter.kind, None, signed)
            else:
                yield words, Voter(voter.kind, outcome, signed)
            if setting.broken is Broken.SIGNED_UNWRITTEN:
                yield (*words, "and crashes"), Voter(voter.kind, voter.memory, signed)

    def _answer_none(self, voter: Voter, public: Public) -> Iterator[tuple[Words, Voter]]:
        for number in NUMBERS:
            parents = self.setting.results(public, number - 1)
            rulers = [self.setting.rulers(parent) for parent in parents]
            asked = any(self.setting.may_vote(voter.kind, charters) for charters in rulers)
            if asked and number > number_of(voter.memory):
                amnesiac = voter.kind == "amnesiac"
                memory = None if amnesiac else self.setting.after_none(voter.memory, number)
                words = f"a client ({voter.kind}) answers", Nothing(number)
                yield words, Voter(voter.kind, memory, voter.signed | {Nothing(number)})


# The machine with everything.


class Client(NamedTuple):
    """`head` and `memory` are durable; `signed` is what it has sent, which nobody can take back."""

    kind: str
    head: Result | None = None
    memory: Vote | None = None
    signed: frozenset[Vote] = frozenset()


class Image(NamedTuple):
    """What an enclave has sealed: the end of its chain, and the pending outcome."""

    head: Result | None = None
    pending: Outcome | None = None

    def __str__(self) -> str:
        pending = f", with {self.pending} pending" if self.pending else ""
        return f"after [{self.head or 'the founding'}]{pending}"


class Copy(NamedTuple):
    """A running enclave. What is not in its image is lost in a crash."""

    image: Image
    pending: Outcome | None = None
    heard: tuple[str, ...] = ()
    """The kinds of the clients whose votes for it have arrived; each client counts once."""


def started(image: Image) -> Copy:
    return Copy(image, image.pending)


class CopiesState(NamedTuple):
    clients: tuple[Client, ...]
    copies: tuple[Copy, ...]
    images: frozenset[Image]
    """The host's disk: every image that it can start a copy from."""
    proposed: frozenset[Outcome]
    public: Public


@dataclass
class Copies:
    """The machine in which every message, image and crash is a step of its own.

    An honest host runs one enclave and restarts it from its newest image; a dishonest one has two,
    and keeps all images. Two openings never make the same outcome, for each draws a new salt: what
    was proposed once can only be continued from its image.
    """

    setting: Setting
    copies: int = 2
    honest_host: bool = False

    def start(self) -> CopiesState:
        clients = tuple(Client(kind) for kind in self.setting.kinds())
        copies = (started(Image()),) * self.copies
        return CopiesState(clients, copies, frozenset({Image()}), frozenset(), Public())

    def public(self, state: CopiesState) -> Public:
        return state.public

    def signed(self, state: CopiesState) -> Signed:
        return [(client.kind, client.signed) for client in state.clients]

    def steps(self, state: CopiesState) -> Iterator[tuple[Words, CopiesState]]:
        for index, client in enumerate(state.clients):
            others = state.clients[:index] + state.clients[index + 1 :]
            for words, moved in self._client_steps(client, state):
                clients = tuple(sorted((*others, moved), key=hash))
                yield (f"a client ({client.kind})", *words), state._replace(clients=clients)
        for index, copy in enumerate(state.copies):
            rest = state.copies[:index] + state.copies[index + 1 :]
            for words, moved_copy, after in self._copy_steps(copy, state):
                copies = tuple(sorted((*rest, moved_copy), key=hash))
                yield ("a copy", *words), after._replace(copies=copies)
        for abandon in self.setting.abandons(state.public, self.signed(state)):
            public = state.public._replace(abandoned=state.public.abandoned | {abandon})
            yield ("the authority signs an", abandon), state._replace(public=public)

    # Clients.

    def _client_steps(self, client: Client, state: CopiesState) -> Iterator[tuple[Words, Client]]:
        setting, next_number = self.setting, number_of(client.head) + 1
        for result in setting.results(state.public, next_number):
            if result is not None and result.parent == client.head:
                yield ("is shown, and follows,", result), client._replace(head=result)
        free = next_number > number_of(client.memory)
        for outcome in state.proposed:
            if free and self._acceptable(client, outcome):
                yield ("writes down its vote:", outcome), client._replace(memory=outcome)
                if setting.broken is Broken.SIGNED_UNWRITTEN:
                    signed = client.signed | {outcome}
                    yield ("signs", outcome, "and crashes"), client._replace(signed=signed)
        if client.memory is not None and client.memory not in client.signed:
            signed = client.signed | {client.memory}
            yield ("signs", client.memory), client._replace(signed=signed)
        asked = setting.authority and next_number in NUMBERS
        if asked and free and setting.may_vote(client.kind, setting.rulers(client.head)):
            none = Nothing(next_number)
            memory = setting.after_none(client.memory, next_number)
            signed = client.signed | {none}
            yield ("answers", none), client._replace(memory=memory, signed=signed)
        if client.kind == "amnesiac":
            yield ("forgets everything",), client._replace(head=None, memory=None)

    def _acceptable(self, client: Client, outcome: Outcome) -> bool:
        """The chain is checked: a proposal has to continue the one that the client holds."""
        may_vote = self.setting.may_vote(client.kind, self.setting.electorate(outcome))
        next_number = number_of(client.head) + 1
        return may_vote and outcome.number == next_number and outcome.parent == client.head

    # Copies.

    def _copy_steps(
        self, copy: Copy, state: CopiesState
    ) -> Iterator[tuple[Words, Copy, CopiesState]]:
        yield from self._restarts(copy, state)
        if copy.pending is None:
            yield from self._proposes(copy, state)
        else:
            yield from self._hears_and_releases(copy, copy.pending, state)
        for abandon in state.public.abandoned:
            if abandon.parent == copy.image.head and self.setting.follows(abandon):
                image = copy.image._replace(head=abandon, pending=None)
                yield ("obeys an", abandon), started(image), self._sealed(state, image)

    def _restarts(
        self, copy: Copy, state: CopiesState
    ) -> Iterator[tuple[Words, Copy, CopiesState]]:
        """A crash, a rollback and a clone: the host starts a copy from an image."""
        for image in state.images:
            if copy != started(image):
                words = "crashes, and is started from the image", image
                yield words, started(image), state

    def _proposes(
        self, copy: Copy, state: CopiesState
    ) -> Iterator[tuple[Words, Copy, CopiesState]]:
        """It collects, makes the outcome pending and proposes it.

        One step: nobody can tell a crash in between from proposals that nobody was shown. It learns
        of charter 1 in time to name it, or does not: it would do nothing else with the knowledge.
        """
        number = number_of(copy.image.head) + 1
        if number not in NUMBERS:
            return
        for outcome in self.setting.outcomes(number, copy.image.head):
            if outcome in state.proposed:
                continue
            after = state._replace(proposed=state.proposed | {outcome})
            image = copy.image._replace(pending=outcome)
            if self.setting.broken is Broken.PENDING_VOLATILE:
                yield ("proposes", outcome), Copy(copy.image, outcome), after
            else:
                yield ("seals and proposes", outcome), started(image), self._sealed(after, image)

    def _hears_and_releases(
        self, copy: Copy, pending: Outcome, state: CopiesState
    ) -> Iterator[tuple[Words, Copy, CopiesState]]:
        signed = [client.kind for client in state.clients if pending in client.signed]
        for kind in sorted(set(signed)):
            if copy.heard.count(kind) < signed.count(kind):
                heard = tuple(sorted((*copy.heard, kind)))
                yield ("receives a vote for", pending), copy._replace(heard=heard), state
        if self.setting.confirmed(pending, list(copy.heard)):
            image = copy.image._replace(head=pending, pending=None)
            public = state.public._replace(released=state.public.released | {pending})
            after = self._sealed(state._replace(public=public), image)
            yield ("has a quorum and releases", pending), started(image), after

    def _sealed(self, state: CopiesState, image: Image) -> CopiesState:
        """An honest host keeps the newest image alone."""
        kept = frozenset() if self.honest_host else state.images
        return state._replace(images=kept | {image})


# The search.

S = TypeVar("S", bound=Hashable)


class Machine(Protocol[S]):
    """Where it starts, what can happen next, and what the host then has."""

    setting: Setting

    def start(self) -> S: ...
    def public(self, state: S) -> Public: ...
    def steps(self, state: S) -> Iterable[tuple[Words, S]]: ...


Origins = dict[S, tuple[Words, S] | None]
"""Each state that was found, with the step and the state that first led to it."""


class Found(NamedTuple):
    """What a search has found. `trace` tells the shortest way to the violation, if there is one."""

    states: int
    violation: str | None
    trace: list[str]
    finishes: bool
    """In some state every number has a released outcome."""

    def __str__(self) -> str:
        if self.violation is None:
            return f"{self.states} states, nothing found"
        lines = [f"  {place}. {words}" for place, words in enumerate(self.trace, 1)]
        return "\n".join([f"{self.violation}, found after {self.states} states:", *lines])


def discover(machine: Machine[S], origins: Origins[S]) -> Iterator[S]:
    """Every state, the nearest first. `origins` is empty, and is filled on the way."""
    start = machine.start()
    origins[start] = None
    yield start
    waiting = deque([start])
    while waiting:
        state = waiting.popleft()
        for words, after in machine.steps(state):
            if after not in origins:
                origins[after] = words, state
                waiting.append(after)
                yield after


def search(machine: Machine[S], forbidden: Iterable[str] = VIOLATIONS) -> Found:
    """Visit every state, the nearest first, until one shows something forbidden."""
    origins: Origins[S] = {}
    verdicts: dict[Public, str | None] = {}
    trace: list[str] = []
    violation = None
    for state in discover(machine, origins):
        public = machine.public(state)
        if public not in verdicts:
            shown = machine.setting.violations(public)
            verdicts[public] = next((found for found in shown if found in forbidden), None)
        violation = verdicts[public]
        if violation:
            trace = way_to(state, origins)
            break
    return Found(len(origins), violation, trace, finishes=any(map(finished, verdicts)))


def finished(public: Public) -> bool:
    return {outcome.number for outcome in public.released} == set(NUMBERS)


def way_to(state: S, origins: Origins[S]) -> list[str]:
    """The steps from the start to a state, in words."""
    words: list[str] = []
    origin = origins[state]
    while origin is not None:
        words.append(" ".join(map(str, origin[0])))
        origin = origins[origin[1]]
    return words[::-1]


def dead_end(machine: Machine[S]) -> list[str] | None:
    """The shortest way into a state from which the numbers can no longer all be released."""
    origins: Origins[S] = {}
    sources: dict[S, list[S]] = {}
    for state in discover(machine, origins):
        for _, after in machine.steps(state):
            sources.setdefault(after, []).append(state)
    alive = {state for state in origins if finished(machine.public(state))}
    waiting = list(alive)
    while waiting:
        fresh = set(sources.get(waiting.pop(), ())) - alive
        alive |= fresh
        waiting.extend(fresh)
    dead = next((state for state in origins if state not in alive), None)
    return None if dead is None else way_to(dead, origins)

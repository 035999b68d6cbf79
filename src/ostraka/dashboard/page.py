"""The page: what there is to see, as parts that change one by one.

`parts` draws all of them from a View, once for everybody who looks. `whole` is the page around
them, which a browser loads once.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from ostraka.attestation import tees
from ostraka.config import Federation
from ostraka.dashboard.markup import Markup, el, join, line, stacked_bars
from ostraka.dashboard.told import Told, Work, doing
from ostraka.dashboard.watching import CONNECTING, Verified, View

_STAGES = ("measure", "average", "hold", "confirm", "publish")
_WORDS = {
    "measure": "measuring distances",
    "average": "averaging",
    "hold": "sealing the outcome",
    "confirm": "waiting for confirmations",
    "publish": "publishing",
}
_PHASES = {
    "starting": "Starting",
    "collecting": "Collecting updates",
    "measuring": "Measuring and averaging",
    "confirming": "Waiting for confirmations",
    "publishing": "Published",
    "rolled back": "Rolled back: publishes nothing",
    "finished": "Finished",
    "stopped": "Stopped",
}
_DRAWN = 30  # rounds in a chart
_LISTED = 50  # receipts and rejections
_CLIENTS = 400  # that are shown by name
_MIB = 2**20
_END_OF_TIME = 2**37  # the latest time that can be written
_SHORT = 16  # characters of a digest

_SIMULATED = (
    "SIMULATED enclave: no TEE protects this federation, and its host can read every update."
)
_UNPROVED = "As the service says; not proved."

# The sections of the page in their order: the part's name, its heading, and its columns.
_SECTIONS = (
    ("clients", "Clients", "wide"),
    ("figures", "Accuracy and loss", "wide"),
    ("stages", "Where the time goes", ""),
    ("workers", "Workers", ""),
    ("rejections", "Rejections", ""),
    ("terms", "Terms", ""),
    ("receipts", "Receipts", "wide"),
    ("evidence", "Evidence", ""),
    ("service", "Service", ""),
)
# These are left out while there is nothing in them.
_OPTIONAL = ("figures",)


def parts(view: View) -> dict[str, Markup]:
    """Draw everything that changes, by its name."""
    told = view.told
    return {
        "title": join(told.federation if told else view.address),
        "notices": _notices(view),
        "sentence": _sentence(view),
        "now": _now(view) if told else el("p", "Nothing is known yet.", class_="muted"),
        "clients": _clients(view),
        "figures": _figures(view),
        "stages": _stages(view),
        "workers": _workers(view),
        "rejections": _rejections(view),
        "terms": _terms(view.federation),
        "receipts": _receipts(view.chain),
        "evidence": _evidence(view),
        "service": _service(view),
    }


def whole(drawn: Mapping[str, Markup]) -> str:
    """The page, with these parts in their places."""

    def place(name: str, tag: str = "div", **attributes: Any) -> Markup:
        return el(tag, drawn[name], data_part=name, **attributes)

    sections = [
        el(
            "section",
            el("h2", heading, id=f"{name}-heading"),
            place(name),
            id=name,
            class_=f"card {wide}".strip(),
            aria_labelledby=f"{name}-heading",
            hidden=name in _OPTIONAL and not drawn[name],
        )
        for name, heading, wide in _SECTIONS
    ]
    header = el(
        "header",
        el("p", "Ostraka", class_="brand"),
        place("title", "h1"),
        el("p", "connected", id="link", class_="link", role="status"),
    )
    overview = el(
        "section",
        el("h2", "Now", id="now-heading"),
        place("sentence", "p", class_="sentence", role="status", aria_live="polite"),
        place("now"),
        id="now",
        class_="card wide",
        aria_labelledby="now-heading",
    )
    main = el(
        "main",
        place("notices", role="region", aria_label="Notices", aria_live="polite"),
        el("div", overview, *sections, class_="grid"),
        id="main",
        tabindex="-1",
    )
    footer = el(
        "footer",
        el(
            "p",
            "Receipts, terms and evidence are verified by this page's server. Everything else is "
            "what the service says of itself. Nothing can be changed from here.",
        ),
    )
    noscript = el("noscript", el("p", "Without scripts this page does not update: reload it."))
    return document(
        join(
            el("a", "Skip to the content", href="#main", class_="skip"),
            header,
            main,
            footer,
            noscript,
        ),
        script=True,
    )


def document(body: Markup, *, script: bool = False) -> str:
    """An HTML document. What it loads comes from the same server."""
    head = el(
        "head",
        Markup('<meta charset="utf-8">'),
        Markup('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        Markup('<meta name="color-scheme" content="light dark">'),
        el("title", "Ostraka dashboard"),
        Markup('<link rel="stylesheet" href="static/page.css">'),
        Markup('<link rel="icon" href="static/icon.svg" type="image/svg+xml">'),
        el("script", src="static/page.js", defer=True) if script else None,
    )
    return f"<!doctype html>{el('html', head, el('body', body), lang='en')}"


def login(wrong: bool) -> str:
    """Asks for the token."""
    form = el(
        "form",
        el("label", "Token", for_="token"),
        Markup(
            '<input id="token" name="token" type="password" required '
            'autocomplete="current-password">'
        ),
        el("button", "Show the federation", type="submit"),
        el("p", "This is not the token.", role="alert", class_="bad") if wrong else None,
        method="post",
        action="login",
    )
    header = el("header", el("p", "Ostraka", class_="brand"), el("h1", "Dashboard"))
    asked = el("p", "This page asks for the token that its server was started with.")
    return document(join(header, el("main", el("div", asked, form, class_="card login"))))


def _notices(view: View) -> Markup:
    refused = [
        el("p", el("strong", "Not verified: "), each, class_="notice bad", role="alert")
        for each in view.refusals
    ]
    return join(
        *refused,
        _unconnected(view) if view.lost and view.lost not in view.refusals else None,
        el("p", _SIMULATED, class_="notice caution") if _is_simulated(view) else None,
    )


def _unconnected(view: View) -> Markup:
    if view.lost == CONNECTING:
        return el("p", el("strong", "Connecting"), f" to {view.address}.", class_="notice caution")
    last = " What follows is the last that was seen." if view.told else ""
    tried = f"{view.address} is tried again ({view.lost}).{last}"
    return el("p", el("strong", "Connection lost: "), tried, class_="notice caution")


def _is_simulated(view: View) -> bool:
    proved = view.claims is not None and view.claims.kind == "simulation"
    return proved or (view.told is not None and view.told.simulated)


def _sentence(view: View) -> Markup:
    """What goes on, for a screen reader, too: it changes with the phase, and not with numbers."""
    told = view.told
    if told is None:
        return join(f"Connecting to {view.address}.")
    if view.lost:
        return join("The connection to the enclave is lost, and is tried again.")
    if told.phase == "finished":
        return join(f"Finished: round {told.published} was the last one.")
    what = doing(
        told.phase,
        _few(told.awaited),
        quorate=told.quorum_reached,
        left_s=None,
        shards=told.shards_missing,
    )
    what = {"measuring": "measuring and averaging", "publishing": "published"}.get(what, what)
    return join(f"Round {told.round} of {told.rounds}: {what}.")


def _few(awaited: tuple[str, ...]) -> tuple[str, ...] | int:
    return awaited if awaited else 0


def _now(view: View) -> Markup:
    told = view.told
    if told is None:
        return Markup()
    clients = len(view.federation.clients) if view.federation else 0
    tiles = [
        _tile("Round", f"{min(told.round, told.rounds)}", f"of {told.rounds}"),
        _tile("Phase", _PHASES.get(told.phase, told.phase), _why(told)),
        _tile("Published", f"{told.published}", f"{len(view.chain)} receipts verified"),
    ]
    if told.phase == "collecting":
        tiles.insert(2, _tile("Deadline", _clock(view.until), _deadline(told)))
        tiles.insert(3, _meter("Updates", len(told.arrived), clients, told.quorum, "the quorum"))
    elif told.phase == "confirming":
        voted = len(told.confirmed)
        needed = voted + (told.confirmations_missing or 0)
        voters = voted + len(told.awaited)
        tiles.insert(2, _meter("Confirmations", voted, voters, needed, "needed"))
    return el("dl", *tiles, class_="tiles")


def _tile(name: str, value: object, more: str = "") -> Markup:
    return el(
        "div",
        el("dt", name),
        el("dd", el("span", value, class_="value"), el("span", more, class_="muted")),
    )


def _meter(name: str, have: int, of: int, needed: int, what: str) -> Markup:
    bar = el("progress", max=max(of, 1), value=have, aria_label=f"{name}: {have} of {of}")
    return el(
        "div",
        el("dt", name),
        el(
            "dd",
            el("span", f"{have} of {of}", class_="value"),
            bar,
            el("span", f"{needed}: {what}", class_="muted"),
        ),
    )


def _clock(until: float | None) -> Markup:
    if until is None:
        return join("-")
    return el("span", "…", data_until=f"{until:.1f}", role="timer")


def _why(told: Told) -> str:
    """Why the round goes on."""
    if told.phase == "collecting" and told.quorum_reached:
        return "the quorum is there; the rest has the time of grace"
    if told.phase == "collecting":
        return "until the quorum, or all, have arrived"
    if told.phase == "confirming":
        return f"{told.confirmations_missing or 0} more are needed to publish"
    return ""


def _deadline(told: Told) -> str:
    if told.quorum_reached:
        return "then it closes"
    grace = "" if told.grace_s is None else f"; {told.grace_s:g} s after the quorum"
    return f"for the quorum of {told.quorum}{grace}"


def _clients(view: View) -> Markup:
    told, federation = view.told, view.federation
    if told is None or federation is None:
        return el("p", "Nothing is known yet.", class_="muted")
    names = [each.name for each in federation.clients]
    counted = {name: _state(name, told) for name in names}
    shown = [
        el(
            "li",
            el("span", mark, class_=f"mark {kind}", aria_hidden="true"),
            el("span", name, class_="name"),
            el("span", text, class_="muted"),
            class_=kind,
        )
        for name, (kind, mark, text) in list(counted.items())[:_CLIENTS]
    ]
    others = sorted(set(told.rejected) - set(names))
    strangers = el("p", f"Refused, and not enrolled: {', '.join(others)}", class_="muted")
    return join(
        el("ul", *shown, class_="clients"),
        _more(len(names) - _CLIENTS),
        strangers if others else None,
        el("p", _UNPROVED, class_="source"),
    )


def _state(name: str, told: Told) -> tuple[str, str, str]:
    """The class, the mark and the words of a client."""
    if name in told.rejected:
        return "bad", "✕", f"rejected: {told.rejected[name]}"
    if told.phase == "confirming":
        if name in told.confirmed:
            return "good", "✓", "has confirmed"
        return "waiting", "…", "awaited to confirm" if name in told.awaited else "took no part"
    if name in told.arrived:
        return "good", "✓", "update arrived"
    if name in told.awaited:
        why = "awaited, in the time of grace" if told.quorum_reached else "awaited"
        return "waiting", "…", why
    return "idle", "·", "took no part" if told.phase != "starting" else ""


def _more(count: int) -> Markup | None:
    return el("p", f"and {count} more", class_="muted") if count > 0 else None


def _figures(view: View) -> Markup:
    """Accuracy and loss, where clients report them."""
    known = dict(list(view.metrics.items())[-_DRAWN:])
    charts, names = [], ("accuracy", "loss")
    for name in names:
        values = {number: each[name] for number, each in known.items() if name in each}
        if values:
            title = f"{name.capitalize()} by round"
            chart = line(title, values, percent=name == "accuracy")
            charts.append(el("figure", el("figcaption", title), chart))
    if not charts:
        return Markup()
    rows = [
        (f"{number}", *(_figure(each.get(name), name) for name in (*names, "examples")))
        for number, each in reversed(known.items())
    ]
    table = _table(
        "Figures by round", ("Round", "Accuracy", "Loss", "Examples"), rows, numbers=True
    )
    return join(
        el("div", *charts, class_="charts"),
        _folded("figures-table", "Show the numbers", table),
        el("p", "As clients report; a mean over them.", class_="source"),
    )


def _figure(value: float | None, name: str) -> str:
    if value is None:
        return "-"
    return f"{100 * value:.1f} %" if name == "accuracy" else f"{value:.4g}"


def _stages(view: View) -> Markup:
    known = dict(list(view.times.items())[-_DRAWN:])
    if not known:
        return el("p", "No round was published while this service runs.", class_="muted")
    chart = stacked_bars("Seconds of each stage, by round", known, _STAGES)
    legend = [
        el("li", el("span", class_=f"swatch s{at}", aria_hidden="true"), _WORDS[stage])
        for at, stage in enumerate(_STAGES)
    ]
    rows = [
        (f"{number}", *(f"{times.get(stage, 0.0):.3f}" for stage in _STAGES))
        for number, times in reversed(known.items())
    ]
    table = _table(
        "Seconds of each stage, newest round first",
        ("Round", *(stage.capitalize() for stage in _STAGES)),
        rows,
        numbers=True,
    )
    return join(
        el("ul", *legend, class_="legend"),
        el("figure", chart),
        _folded("stages-table", "Show the numbers", table),
        el("p", _UNPROVED, class_="source"),
    )


def _workers(view: View) -> Markup:
    told = view.told
    enrolled = [each.name for each in view.federation.workers] if view.federation else []
    if told is None or not enrolled:
        return el("p", "No worker is enrolled.", class_="muted")
    rows = []
    for name in enrolled:
        work = view.work.get(name, Work())
        here = "connected" if name in told.workers else "absent"
        rows.append(
            (
                name,
                el("span", here, class_="good" if here == "connected" else "muted"),
                f"{work.attempts}",
                el("span", f"{work.lies}", class_="bad" if work.lies else ""),
                el("span", f"{work.failures}", class_="caution" if work.failures else ""),
            )
        )
    liars = [name for name in enrolled if view.work.get(name, Work()).lies]
    them = "were caught: they got" if len(liars) > 1 else "was caught: it got"
    said = f"{', '.join(liars)} returned false numbers and {them} no more work in that round."
    heads = ("Worker", "Now", "Attempts", "Lies", "Failures")
    return join(
        el("p", said, class_="bad") if liars else None,
        _table("Workers: how often each was asked, and what came of that", heads, rows),
        el("p", _UNPROVED, class_="source"),
    )


def _rejections(view: View) -> Markup:
    """The newest first: of the open round, as told, and of published ones, as signed."""
    rows: list[tuple[object, ...]] = []
    told = view.told
    open_round = told is not None and told.round > told.published
    if told is not None and open_round:
        rows += [
            (f"{told.round}", who, why, el("span", "told", class_="muted"))
            for who, why in sorted(told.rejected.items())
        ]
    signed = [
        (f"{each.receipt.number}", out.client, out.reason, _verified())
        for each in reversed(view.chain)
        for out in each.receipt.rejected
    ]
    rows += signed
    if not rows:
        return el("p", "Nobody was rejected.", class_="muted")
    heads = ("Round", "Client", "Why", "Proof")
    return join(
        _table("Updates that took no part, newest first", heads, rows[:_LISTED]),
        _more(len(rows) - _LISTED),
    )


def _terms(federation: Federation | None) -> Markup:
    if federation is None:
        return el("p", "Nothing is known yet.", class_="muted")
    terms = federation.terms
    composition = terms.composition
    pairs = [
        ("Rule", str(composition)),
        ("Byzantine clients tolerated (f)", f"{terms.f} of {len(federation.clients)}"),
        ("Values in an update", f"{terms.dimension:,}"),
        ("Masking", f"{terms.masking}{'' if terms.inside else f', {terms.workers} workers'}"),
        ("Distances", f"{terms.distances}{f', sketch of {terms.sketch}' if terms.sketch else ''}"),
        ("Workers verified", "yes" if terms.verify else "NO"),
        ("Who confirms", terms.confirm),
        ("Uploads", terms.upload),
        ("Selection disclosed", "yes" if terms.disclose_selection else "no"),
        ("Client momentum", f"{terms.client_momentum:g}"),
        ("Revision", f"{federation.revision}"),
        ("Federation", federation.id.hex()),
    ]
    return join(_pairs(pairs), el("p", _verified(), " signed by the authority", class_="source"))


def _receipts(chain: Sequence[Verified]) -> Markup:
    if not chain:
        return el("p", "No round is published yet.", class_="muted")
    rows = [
        (
            f"{each.receipt.number}",
            _verified(),
            f"{each.receipt.participants}",
            f"{each.receipt.kept}",
            f"{len(each.receipt.rejected)}",
            f"{each.votes}",
            _remarks(each),
            el("code", each.receipt.model.hex()[:_SHORT], title=each.receipt.model.hex()),
        )
        for each in reversed(chain[-_LISTED:])
    ]
    heads = ("Round", "Chain", "Updates", "Kept", "Rejected", "Confirmed", "Remarks", "Model")
    return join(
        _table("Receipts, newest first", heads, rows),
        _more(len(chain) - _LISTED),
        el(
            "p",
            "Of each receipt, its signature, its place in the chain, its terms and the "
            "confirmations in its certificate are verified.",
            class_="source",
        ),
    )


def _remarks(each: Verified) -> str:
    receipt = each.receipt
    said = [f"null step: {receipt.failure}" if receipt.failure else "", receipt.note]
    others = [
        each for each in receipt.cautions if not each.startswith("simulated")
    ]  # It stands above all.
    return "; ".join(filter(None, (*said, *others))) or "-"


def _evidence(view: View) -> Markup:
    if view.claims is None:
        return el("p", "The enclave has not proved itself yet.", class_="muted")
    when = datetime.fromtimestamp(view.proved_at, UTC)
    simulated = view.claims.kind == "simulation"
    mark = el("span", "simulated", class_="badge caution") if simulated else _verified()
    proved = el(
        "p", mark, f" accepted by the policy at {when:%Y-%m-%d %H:%M:%S} UTC", class_="source"
    )
    return join(_pairs(tees.words(view.claims)), proved)


def _service(view: View) -> Markup:
    told = view.told
    if told is None:
        return el("p", "Nothing is known yet.", class_="muted")
    started = datetime.fromtimestamp(min(told.started_at, _END_OF_TIME), UTC)
    pairs = [
        ("Address", view.address),
        ("Started", f"{started:%Y-%m-%d %H:%M:%S} UTC"),
        ("Restarts seen", f"{view.restarts}"),
        ("Memory, at most", f"{told.memory_mib:,} MiB"),
        ("Received", _size(told.bytes_in)),
        ("Sent", _size(told.bytes_out)),
    ]
    return join(_pairs(pairs), el("p", _UNPROVED, class_="source"))


def _size(count: int) -> str:
    return f"{count / _MIB:,.1f} MiB"


def _verified() -> Markup:
    return el("span", el("span", "✓ ", aria_hidden="true"), "verified", class_="badge good")


def _pairs(pairs: Iterable[tuple[str, str]]) -> Markup:
    rows = [el("div", el("dt", name), el("dd", value)) for name, value in pairs]
    return el("dl", *rows, class_="pairs")


def _table(
    caption: str,
    heads: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    numbers: bool = False,
) -> Markup:
    """A table that scrolls by itself where it has no room."""
    head = el("tr", *(el("th", each, scope="col") for each in heads))
    body = [
        el("tr", el("th", first, scope="row"), *(el("td", each) for each in rest))
        for first, *rest in rows
    ]
    table = el(
        "table",
        el("caption", caption),
        el("thead", head),
        el("tbody", *body),
        class_="numbers" if numbers else None,
    )
    return el("div", table, class_="scroll", tabindex="0", role="region", aria_label=caption)


def _folded(name: str, summary: str, content: Markup) -> Markup:
    return el("details", el("summary", summary), content, id=name)

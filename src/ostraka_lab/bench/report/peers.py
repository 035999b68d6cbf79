"""The same updates through Ostraka and its peers."""

from typing import Any

from matplotlib.figure import Figure

from ostraka_lab.bench.process import Figures
from ostraka_lab.report import Block, Column, KeyFigure, Paragraph, Plot, Table, format
from ostraka_lab.report.drawing import BLUE, MUTED, SKY, VERMILLION

_SKETCH, _EXACT = "ostraka-exact-sketch", "ostraka-exact"
_COSTS = (
    Column("Name"),
    Column("CPU", number=True),
    Column("of the enclave", number=True),
    Column("of that, receiving", number=True),
    Column("of that, noise", number=True),
    Column("wall", number=True),
    Column("spread", number=True),
    Column("× floor", number=True),
    Column("peak memory", number=True),
)
_ROLES = (
    Column("Name"),
    Column("clients", number=True),
    Column("unpacking", number=True),
    Column("aggregation", number=True),
    Column("workers", number=True),
    Column("enclave", number=True),
    Column("all roles", number=True),
)
_CHOICES = (
    Column("Name"),
    Column("correct"),
    Column("attackers kept", number=True),
    Column("correct on differences"),
)


def blocks(figures: Figures) -> list[Block]:
    return [
        Paragraph(_what(figures)),
        _plot(figures),
        _ratios(figures),
        Table(_ROLES, [_roles(row) for row in figures["rows"]], caption=_ALL_ROLES),
        Table(_COSTS, [_cost(row) for row in figures["rows"]], caption=_caption(figures)),
        Table(_CHOICES, [_choice(row) for row in figures["rows"]], caption="Who was selected"),
        *(
            Paragraph(f"{row['name']} is {row['absent']}")
            for row in figures["rows"]
            if row["absent"]
        ),
        Paragraph(_TERMS),
    ]


def key_figures(figures: Figures) -> list[KeyFigure]:
    rows = by_name(figures)
    sketch, floor = rows.get(_SKETCH), rows.get("floor")
    found = []
    for peer in ("flower", "byzfl-torch"):
        if sketch and peer in rows:
            share = sketch["all_roles_cpu_s"] / rows[peer]["all_roles_cpu_s"]
            alone = sketch["cpu_s"] / rows[peer]["cpu_s"]
            note = (
                f"all roles, exact masks on a sketch, over {peer} in the clear with its clients' "
                f"packing and its server's unpacking; {format.times(alone)} if the enclave and "
                "the workers are set against aggregation alone"
            )
            found.append(KeyFigure("CPU of a private round", format.times(share), note))
    if sketch and floor:
        share = sketch["enclave_cpu_s"] / floor["cpu_s"]
        found.append(KeyFigure("Enclave's CPU", format.times(share), "over the floor"))
    return found


def by_name(figures: Figures) -> dict[str, Any]:
    """The rows of the peers that took part."""
    return {row["name"]: row for row in figures["rows"] if not row["absent"]}


_TERMS = (
    "Flower and ByzFL get whole weights, as Flower's clients send them: Flower as replies of nodes "
    "to aggregate_train, ByzFL as one tensor or array. blas-clear gets differences. Timed is "
    "aggregation alone, on inputs that lie in memory. Ostraka gets sealed updates: headers, "
    "opening, checking, folding, masking, the workers, decoding, averaging and signing are in its "
    "CPU time. Receiving is the part of it that is done as updates arrive; no bytes cross a "
    "network, whose cost `ostraka bench service` measures. The clients' sealing is in the column "
    "of all roles. Every run is a process of its own, and "
    "peak memory is that of the process with its inputs. A selection is correct if it holds no "
    "attacker and is what float64 selects by the same convention: Flower and Ostraka sum the "
    "n - f - 2 nearest, ByzFL n - f - 1. The floor selects nothing. On differences: whether the "
    "same code is correct if it is given updates instead of weights."
)


_ALL_ROLES = (
    "All roles: what the whole federation does for one aggregation. Clients of Ostraka and of the "
    "floor seal their updates (Ostraka's vote, too); those of Flower make their messages and the "
    "digests of these; those of the others pack arrays. A plain server unpacks what arrives. The "
    "enclave's part holds receiving, opening and all that it prepares. Training, the network and "
    "TLS are in no row"
)


def _what(figures: Figures) -> str:
    return (
        f"{figures['clients']} updates of {figures['dimension']:,} values, of which "
        f"{figures['byzantine']} are the opposite of an honest one; {figures['kept']} are kept. "
        f"An update's values are {figures['update_scale']:g} of the weights' in size. "
        f"Threads: {figures['threads']}."
    )


def _caption(figures: Figures) -> str:
    return f"Medians of {figures['repeat']} runs, each peer in turn"


def _cost(row: Figures) -> list[str]:
    return [
        row["name"],
        format.seconds(row["cpu_s"]),
        format.seconds(row["enclave_cpu_s"]),
        format.seconds(row["receiving_cpu_s"]),
        format.seconds(row["prepare_cpu_s"]),
        format.seconds(row["wall_s"]),
        format.percent(row["cpu_spread"]),
        format.times(row["x_floor"]),
        format.size(row["peak_rss_mib"], "MiB"),
    ]


def _roles(row: Figures) -> list[str]:
    ours = row["enclave_cpu_s"] is not None
    return [
        row["name"],
        format.seconds(row["clients_cpu_s"]),
        format.seconds(row["unpacking_cpu_s"]),
        format.seconds(None if ours else row["cpu_s"]),
        format.seconds(row["worker_cpu_s"]),
        format.seconds(row["enclave_cpu_s"]),
        format.seconds(row["all_roles_cpu_s"]),
    ]


def _choice(row: Figures) -> list[str]:
    return [
        row["name"],
        "absent" if row["absent"] else format.yes(row["correct"]),
        "-" if row["attackers_kept"] is None else str(row["attackers_kept"]),
        format.yes(row.get("correct_on_differences")),
    ]


def _plot(figures: Figures) -> Plot:
    rows = list(by_name(figures).values())

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        places = range(len(rows))
        enclave = [row["enclave_cpu_s"] or 0.0 for row in rows]
        rest = [row["cpu_s"] - part for row, part in zip(rows, enclave, strict=True)]
        colours = [VERMILLION if row["correct"] is False else MUTED for row in rows]
        axes.barh(places, enclave, color=BLUE, label="enclave")
        ours = [SKY if row["enclave_cpu_s"] else c for row, c in zip(rows, colours, strict=True)]
        axes.barh(places, rest, left=enclave, color=ours)
        axes.set_yticks(places, [row["name"] for row in rows])
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
        axes.set_xlabel("CPU seconds")

    caption = (
        "Blue is the enclave, light blue the workers; what clients do to send, and a plain server "
        "to receive, is not drawn. Red selected the wrong clients. Grey did not, or made no "
        "selection."
    )
    return Plot("CPU of one aggregation", caption, paint, height=1 + 0.28 * len(rows))


def _ratios(figures: Figures) -> Table:
    """Ratios of Ostraka to each peer."""
    rows = by_name(figures)
    ours = [name for name in rows if name.startswith("ostraka")]
    others = [name for name in rows if not name.startswith("ostraka")]
    cells = [
        [
            f"{name}, {counted}",
            *(format.times(rows[name][part] / rows[other][beside]) for other in others),
        ]
        for counted, part, beside in (
            ("all roles / all roles", "all_roles_cpu_s", "all_roles_cpu_s"),
            ("enclave and workers / aggregation alone", "cpu_s", "cpu_s"),
            ("enclave / aggregation alone", "enclave_cpu_s", "cpu_s"),
        )
        for name in ours
    ]
    columns = [Column("CPU of"), *(Column(f"/ {name}", number=True) for name in others)]
    caption = (
        "Ratios in this run: below 1 is less CPU than the peer. Only the first rows count what "
        "clients do to send, and a plain server to receive"
    )
    return Table(columns, cells, caption=caption)

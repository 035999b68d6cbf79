"""Has anything become slower?"""

from ostraka.bench.child import Figures
from ostraka.bench.report import words
from ostraka.report.blocks import Block, Column, Notice, Table

_COLUMNS = (
    Column("Stage"),
    Column("× open", number=True),
    Column("baseline", number=True),
    Column("change", number=True),
    Column("allowed", number=True),
    Column("slower"),
)


def blocks(figures: Figures) -> list[Block]:
    rows = [
        [
            row["stage"],
            f"{row['ratio']:.2f}",
            f"{row['baseline']:.2f}",
            f"{100 * row['change']:+.0f} %",
            words.percent(row["limit"]),
            words.yes(row["slower"]),
        ]
        for row in figures["rows"]
    ]
    slower = [row["stage"] for row in figures["rows"] if row["slower"]]
    caption = (
        f"{figures['clients']} clients of {figures['dim']:,} values, beside {figures['baseline']}. "
        "Allowed is what the noise of both runs explains, or the tolerance if that is more"
    )
    notices: list[Block] = (
        [Notice("Slower:", ", ".join(slower), tone="bad")]
        if slower
        else [Notice("Nothing became slower.", "", tone="good")]
    )
    return [*notices, Table(_COLUMNS, rows, caption=caption)]

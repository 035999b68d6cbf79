"""What a lead and its shards spend."""

from ostraka_lab.bench.process import Figures
from ostraka_lab.bench.shards import GBIT_S
from ostraka_lab.report import Block, Column, Paragraph, Table, format

_COSTS = {
    "enclave_cpu_s": ("CPU of one enclave without shards", format.seconds),
    "shard_cpu_s": ("CPU of each shard", format.seconds),
    "lead_cpu_s": ("CPU of the lead", format.seconds),
    "shard_bytes": ("memory of each shard, all rows in it", format.size),
    "lead_bytes": ("memory of the lead", format.size),
}


def blocks(figures: Figures) -> list[Block]:
    target, told = figures["target"], figures["forecasts"][0]
    return [
        Paragraph(
            "A lead and its shards as processes on one machine, over loopback. CPU is that of a "
            "whole round, sending the model included. A share is what one enclave without shards "
            "spends on the same, divided by the number of shards. Equal means that clients got the "
            "same model to 1e-6 of its largest value, from the same selection."
        ),
        _shares(figures),
        _leads(figures),
        Paragraph(
            f"Forecasts for {target['clients']:,} clients of {target['dimension']:,} values. A "
            "cost is taken to be a sum of terms, fitted to all sizes with no negative term. The "
            "band holds nine in ten fits to runs drawn anew; the misfit is how far the sum misses "
            "the sizes that were measured."
        ),
        _costs(figures),
        _traffic(figures),
        Paragraph(
            f"Each worker's products take {told['worker_operations']:.3g} operations on "
            f"{target['columns']:,} columns: {format.seconds(told['worker_gpu_s'])} of one GPU at "
            f"{figures['int8_rate']:.0e} int8 operations a second. That rate is assumed: no GPU "
            "was measured."
        ),
        *_skipped(figures),
    ]


def _shares(figures: Figures) -> Table:
    columns = [
        Column("Clients", number=True),
        Column("values", number=True),
        Column("shards", number=True),
        Column("one enclave", number=True),
        Column("busiest shard", number=True),
        Column("× its share", number=True),
        Column("lead", number=True),
        Column("enclave's memory", number=True),
        Column("shard's", number=True),
        Column("lead's", number=True),
        Column("to each shard", number=True),
        Column("equal"),
    ]
    rows = [
        [
            str(each["clients"]),
            f"{each['dimension']:,}",
            str(each["shards"]),
            format.seconds(each["enclave_cpu_s"]),
            format.seconds(max(each["shard_cpu_s"])),
            f"{max(each['x_share']):.2f}",
            format.seconds(each["lead_cpu_s"]),
            format.size(each["enclave_bytes"]),
            format.size(each["shard_bytes"]),
            format.size(each["lead_bytes"]),
            format.size(each["received_bytes"]),
            format.yes(each["equal"]),
        ]
        for each in figures["shares"]
    ]
    return Table(columns, rows, caption=f"A round, {figures['scheme']}")


def _leads(figures: Figures) -> Table:
    columns = [
        Column("Clients", number=True),
        Column("shards", number=True),
        Column("values"),
        Column("lead's CPU"),
        Column("lead's memory"),
    ]
    rows = [
        [
            str(each["clients"]),
            str(each["shards"]),
            " and ".join(f"{dimension:,}" for dimension in each["dimensions"]),
            " and ".join(map(format.seconds, each["cpu_s"])),
            " and ".join(map(format.size, each["bytes"])),
        ]
        for each in figures["leads"]
    ]
    return Table(columns, rows, caption="The lead, by the length of updates")


def _costs(figures: Figures) -> Table:
    columns = [
        Column("Cost"),
        Column("shards", number=True),
        Column("forecast", number=True),
        Column("band", number=True),
        Column("misfit", number=True),
        Column("terms"),
    ]
    rows = [
        [
            what,
            str(told["shards"]),
            show(told["value"]),
            f"{show(told['low'])} to {show(told['high'])}",
            format.percent(told["misfit"]),
            " + ".join(f"{c:.3g} {name}" for name, c in told["terms"].items() if c) or "0",
        ]
        for cost, (what, show) in _COSTS.items()
        for told in figures["fits"][cost]
    ]
    return Table(columns, rows)


def _traffic(figures: Figures) -> Table:
    columns = [
        Column("Shards", number=True),
        Column("to each shard", number=True),
        *(Column(f"at {rate} Gbit/s", number=True) for rate in GBIT_S),
        Column("rows at each shard", number=True),
        Column("from all shards to the lead", number=True),
        *(Column(f"at {rate} Gbit/s", number=True) for rate in GBIT_S),
        Column("asked of the lead's machine", number=True),
        Column("of a shard's, beside rows", number=True),
    ]
    rows = [
        [
            str(each["shards"]),
            format.size(each["received_bytes"]),
            *(format.seconds(each["receive_s"][str(rate)]) for rate in GBIT_S),
            format.size(each["row_bytes"]),
            format.size(each["lead_received_bytes"]),
            *(format.seconds(each["lead_receive_s"][str(rate)]) for rate in GBIT_S),
            format.size(each["lead_budget_bytes"]),
            format.size(each["shard_budget_bytes"]),
        ]
        for each in figures["forecasts"]
    ]
    return Table(columns, rows, caption="What follows from the formats, and is not measured")


def _skipped(figures: Figures) -> list[Block]:
    pairs = "; ".join(f"{clients} x {dimension:,}" for clients, dimension in figures["skipped"])
    return [Paragraph(f"Not measured, for lack of time or memory: {pairs}")] if pairs else []

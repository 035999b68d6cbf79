"""The commands that the lab adds to `ostraka`, as the entry points in pyproject.toml name them.

They are always listed. Most of what they need is installed by the extra "lab", and is imported
when one of them runs.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from ostraka.cli.lazy import Command, Group
from ostraka.errors import INTERRUPTED, TERMINATED

_EXTRA = "lab"


def _command(target: str, text: str) -> Command:
    return Command(f"ostraka_lab.commands.{target}", text, _EXTRA)


@contextmanager
def stoppable() -> Iterator[list[int]]:
    """Let Ctrl-C or SIGTERM end this block alone. Yields a list that then holds the exit code.

    What was done until then can still be shown.
    """
    ended: list[int] = []
    try:
        yield ended
    except KeyboardInterrupt:
        ended.append(INTERRUPTED)
    except SystemExit as end:
        if end.code != TERMINATED:
            raise
        ended.append(TERMINATED)


DEMO = _command("train:demo", "Watch a federation learn under attack, beside plain averaging.")
TRAIN = _command("train:train", "Train a model in a federation under attack, on this machine.")
COMPARE = _command("compare:compare", "Compare defences over a list of attacks.")
DATA = Group(
    """Fetch and list data sets for the lab, in the user's cache.

    \b
    Examples:
      ostraka data list
      ostraka data get cifar10
    """,
    {
        "get": _command("data:get", "Fetch a data set."),
        "list": _command("data:list_all", "List the data sets, and which of them are sound."),
    },
)
BENCH = Group(
    """Measure what the parts cost on this machine.

    \b
    Examples:
      ostraka bench kernels
      ostraka bench peers
      ostraka bench paper --quick
    """,
    {
        "paper": _command("bench_suites:paper", "Measure the paper's figures on this machine."),
        "peers": _command(
            "bench_suites:peers", "Run the same updates through Flower, ByzFL and Ostraka."
        ),
        "scale": _command(
            "bench_suites:scale", "Measure how cost grows with clients and with values."
        ),
        "leakage": _command(
            "bench_leakage:leakage", "Attack to see what one worker learns, and what the host does."
        ),
        "confirm": _command(
            "bench_confirm:confirm", "Measure what it takes to confirm an outcome."
        ),
        "rules": _command(
            "bench_rules:rules", "Measure what an aggregation rule costs the enclave."
        ),
        "service": _command(
            "bench_service:service", "Measure a whole service over loopback, process by process."
        ),
        "ray": _command("bench_ray:ray", "Measure what a worker on Ray takes beside one process."),
        "check": _command("bench:check", "Fail if a stage has become slower."),
        "kernels": _command("bench:kernels", "Measure the CPU time of each stage of a round."),
        "calibrate": _command("bench:calibrate", 'Measure this machine for distances="auto".'),
    },
)

"""Print how far f copies of one row reach, by rule, as docs/attacks.md has it.

python tools/offsets.py
"""

from collections.abc import Collection, Iterator

from ostraka.core import rules
from ostraka.core.rules import resilience

FEDERATIONS = ((12, 3), (25, 5), (25, 9), (33, 10), (33, 15), (64, 12), (64, 20))
ROOT = "(root=client-1)"
BESIDE = ("arc+multi-krum", "nnm+multi-krum")


def compositions() -> Iterator[rules.Composition]:
    """Every rule, after what it needs, and what else is in use."""
    for name, rule in rules.RULES.items():
        if name == "krum":
            yield rules.parse("nnm+krum")
        else:
            yield rules.parse(name + ROOT * rule.needs_root)
    yield rules.FALLBACK
    yield from map(rules.parse, BESIDE)


def cell(composition: rules.Composition, n: int, f: int) -> str:
    """The largest offset, and how far the aggregate is moved, marked where it turns around."""
    if n < composition.least(f):
        return ""
    found = resilience.reach(composition, n, f)
    words = f"{found.offset:.1f}, {found.moved:.2f}"
    return f"**{words}**" if found.turns else words


def lines(only: Collection[str] = ()) -> Iterator[str]:
    """The table in Markdown. only: the compositions to measure, by name; empty for all."""
    yield "| rule | " + " | ".join(f"{n}, {f}" for n, f in FEDERATIONS) + " |"
    yield "|---" * (1 + len(FEDERATIONS)) + "|"
    for each in compositions():
        if only and each.plain not in only:
            continue
        cells = (cell(each, n, f) for n, f in FEDERATIONS)
        yield f"| `{each.plain}` | " + " | ".join(cells) + " |"


if __name__ == "__main__":
    for line in lines():
        print(line)  # noqa: T201

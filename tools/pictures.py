"""Draw the pictures of README and site into docs/pictures: python tools/pictures.py

Figures are read from the tables of the documents, so that pictures and text say the same, and the
look at the demo from `docs/pictures/demo.txt`. `--demo` runs the real demo first, and writes that
file anew. The same input gives the same bytes; a test compares them with what is committed.

Every picture has a ground of its own, in a light and a dark form, and type that can be read where
it is 400 pixels wide. Nothing is loaded from anywhere.
"""

import argparse
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from html import escape
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "pictures"
WIDE = 720

_STYLE = """
  text { font-family: system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
  .mono { font-family: ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; }
  .ground { fill: #ffffff; stroke: #dde3e8; }
  .ink { fill: #1c2733; } .soft { fill: #55636f; }
  .blue { fill: #0072b2; } .red { fill: #c14f00; }
  .green { fill: #00765a; } .grey { fill: #98a4ae; }
  .box { fill: #eef3f7; stroke: #98a4ae; } .bad { fill: #fdeee4; stroke: #c14f00; }
  .safe { fill: #e3f4ee; stroke: #00765a; } .host { fill: #f7f7f4; stroke: #98a4ae; }
  .line { stroke: #55636f; } .arrow { fill: #55636f; } .on { fill: #ffffff; }
  @media (prefers-color-scheme: dark) {
    .ground { fill: #12181f; stroke: #2c3946; }
    .ink { fill: #e8eef3; } .soft { fill: #a9b6c2; }
    .blue { fill: #56b4e9; } .red { fill: #ff9a57; }
    .green { fill: #3ecf9f; } .grey { fill: #6f7f8d; }
    .box { fill: #1c2733; stroke: #6f7f8d; } .bad { fill: #3a2113; stroke: #ff9a57; }
    .safe { fill: #10342a; stroke: #3ecf9f; } .host { fill: #171f28; stroke: #6f7f8d; }
    .line { stroke: #a9b6c2; } .arrow { fill: #a9b6c2; } .on { fill: #12181f; }
  }
"""


def picture(title: str, height: float, parts: Sequence[str]) -> str:
    """A whole SVG file. title: what it shows, for those who do not see it."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDE} {height:g}" role="img">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n"
        f'<rect class="ground" x="1" y="1" width="{WIDE - 2}" height="{height - 2:g}" rx="14"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def said(
    x: float,
    y: float,
    words: str,
    *,
    size: int = 21,
    kind: str = "ink",
    at: str = "start",
    bold: bool = False,
) -> str:
    """A line of text. at: what x is of it (start, middle or end)."""
    weight = ' font-weight="650"' if bold else ""
    return (
        f'<text class="{kind}" x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{at}"{weight}>'
        f"{escape(words)}</text>"
    )


def box(x: float, y: float, width: float, height: float, kind: str, *, dashed: bool = False) -> str:
    dash = ' stroke-dasharray="7 5"' if dashed else ""
    return (
        f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="10" '
        f'stroke-width="2"{dash}/>'
    )


def arrow(x: float, y: float, to_y: float) -> str:
    """A line down or up, with a head."""
    down = 1 if to_y > y else -1
    return (
        f'<path class="line" d="M{x:g} {y:g}V{to_y - 9 * down:g}" stroke-width="2.5" fill="none"/>'
        f'<path class="arrow" d="M{x:g} {to_y:g}l-7 {-12 * down}h14z"/>'
    )


def architecture() -> str:
    """Who there is, what they send each other, and what each of them sees."""
    parts = []
    for n, name in enumerate(("hospital A", "hospital B", "hospital C", "attacker")):
        x = 24 + n * 171
        parts += [box(x, 24, 159, 62, "bad" if n == 3 else "box")]
        kind = "red" if n == 3 else "ink"
        parts += [said(x + 79.5, 62, name, at="middle", bold=True, kind=kind)]
        parts += [arrow(x + 55, 86, 196), arrow(x + 104, 196, 86)]
    parts += [
        box(24, 116, 340, 48, "ground"),
        said(194, 147, "sealed updates  ↓", at="middle", kind="soft"),
        box(376, 116, 320, 48, "ground"),
        said(536, 147, "↑  model, signed receipt", at="middle", kind="soft"),
        box(24, 200, 672, 264, "host", dashed=True),
        said(48, 236, "The host’s machine: not trusted", kind="soft", bold=True),
        said(
            48,
            264,
            "sees ciphertext, and each confirmed model",
            size=19,
            kind="soft",
        ),
        box(48, 282, 624, 164, "safe"),
        said(72, 318, "Enclave: proves its code to every client first", kind="green", bold=True),
        said(72, 352, "opens updates, masks them for the workers"),
        said(72, 384, "weighs them: the attacker counts little or nothing"),
        said(72, 416, "publishes one outcome a round, which clients confirm"),
        arrow(216, 446, 546),
        arrow(264, 546, 446),
        arrow(456, 446, 546),
        arrow(504, 546, 446),
        box(84, 480, 552, 40, "ground"),
        said(360, 507, "masked updates  ↓   ↑  inner products, checked", at="middle", kind="soft"),
    ]
    for n in range(2):
        x = 84 + n * 290
        parts += [
            box(x, 550, 262, 88, "box"),
            said(x + 131, 586, f"worker {n + 1}", at="middle", bold=True),
            said(x + 131, 616, "sees uniform noise", at="middle", kind="soft"),
        ]
    return picture(
        "Clients send sealed updates to an enclave on a machine that nobody has to trust. Workers "
        "compute on masked updates. The enclave weighs updates and sends back model and receipt.",
        660,
        parts,
    )


STEPS = (
    (
        "Intake",
        "Sealed updates arrive. Each is opened inside,",
        "checked and kept; broken ones are left out.",
    ),
    (
        "Measure",
        "Workers multiply masked updates. The enclave takes",
        "the masks off: one number for each pair of clients.",
    ),
    (
        "Decide",
        "A robust rule turns these numbers into weights.",
        "Updates far from the others get little or none.",
    ),
    (
        "Combine",
        "One pass over the updates: their weighted sum",
        "is the aggregate, which moves the model.",
    ),
    (
        "Propose",
        "The outcome is signed, and only a salted digest of it",
        "is shown. Nothing has left the enclave yet.",
    ),
)


def round_in_steps() -> str:
    """The five steps of a round, and the vote after them."""
    parts = [f'<path class="line" d="M58 62V{62 + 5 * 104}" stroke-width="3" fill="none"/>']
    for n, (name, first, second) in enumerate(STEPS):
        y = 62 + n * 104
        parts += [
            f'<circle class="green" cx="58" cy="{y}" r="26"/>',
            said(58, y + 8, str(n + 1), size=23, kind="on", at="middle", bold=True),
            said(104, y - 10, name, size=24, kind="green", bold=True),
            said(104, y + 18, first),
            said(104, y + 45, second),
        ]
    y = 62 + 5 * 104
    parts += [
        f'<circle class="blue" cx="58" cy="{y}" r="26"/>',
        f'<path d="M46 {y}l9 10 16-19" stroke="#fff" stroke-width="4" fill="none"/>',
        said(104, y - 10, "The clients confirm", size=24, kind="blue", bold=True),
        said(104, y + 18, "More than (n + f)/2 of them, each once a round: then"),
        said(104, y + 45, "model and receipt are released, one outcome a round."),
    ]
    steps = "; ".join(f"{n + 1} {each[0].lower()}" for n, each in enumerate(STEPS))
    return picture(f"A round: {steps}; then the clients confirm.", 662, parts)


def shards() -> str:
    """A lead and two shards: what goes to which of them."""
    parts = [box(24, 24, 672, 62, "box"), box(24, 196, 672, 206, "host", dashed=True)]
    parts += [said(360, 62, "clients know the lead, and are told where shards are", at="middle")]
    columns = (
        (36, "lead", ("takes headers,", "decides, signs"), "header, receipt"),
        (254, "shard 0", ("opens the first", "half of updates"), "tiles, slice"),
        (472, "shard 1", ("opens the second", "half of updates"), "tiles, slice"),
    )
    for x, name, words, carried in columns:
        parts += [arrow(x + 40, 86, 196), arrow(x + 172, 196, 86)]
        parts += [box(x, 116, 212, 48, "ground")]
        parts += [said(x + 106, 147, carried, at="middle", kind="soft")]
        parts += [box(x, 208, 212, 128, "safe")]
        parts += [said(x + 106, 242, name, at="middle", kind="green", bold=True)]
        for n, line in enumerate(words):
            parts += [said(x + 106, 276 + 30 * n, line, at="middle")]
        parts += [arrow(x + 40, 402, 512), arrow(x + 172, 512, 402)]
    parts += [
        said(360, 376, "between them: keys, matrices and a plan", at="middle", kind="soft"),
        box(84, 434, 552, 40, "ground"),
        said(360, 461, "masked updates  ↓   ↑  inner products, checked", at="middle", kind="soft"),
        box(24, 516, 672, 62, "box"),
        said(360, 554, "workers serve the lead and every shard", at="middle"),
    ]
    return picture(
        "A lead with two shards. Clients send headers to the lead and tiles to the shards; workers "
        "serve all three; between lead and shards go keys, matrices and a plan.",
        600,
        parts,
    )


def rows_under(document: str, heading: str) -> list[list[str]]:
    """The cells of the tables of a section, without their marks."""
    text = (ROOT / "docs" / document).read_text().split(f"## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in text.splitlines() if line.startswith("|")]
    cut = [[re.sub(r"[`*]", "", c).strip() for c in re.split(r"(?<!\\)\|", r)[1:-1]] for r in lines]
    return [row for row in cut if not set("".join(row)) <= set("-: ")]


def bars(
    title: str,
    lines: Sequence[str],
    found: Sequence[tuple[str, float, str, str]],
    most: float,
    note: Sequence[str],
) -> str:
    """Horizontal bars. found: label, length, what is written behind it, and its colour."""
    parts = [said(28, 48, title, size=25, bold=True)]
    parts += [said(28, 80 + 28 * n, line, size=20, kind="soft") for n, line in enumerate(lines)]
    y = 80 + 28 * len(lines)
    for label, length, behind, kind in found:
        parts += [
            said(28, y + 22, label, kind=kind if kind != "grey" else "ink", bold=kind != "grey"),
            f'<rect class="{kind}" x="28" y="{y + 32}" width="{max(3, 560 * length / most):.1f}" '
            'height="20" rx="4"/>',
            said(38 + max(3, 560 * length / most), y + 50, behind, bold=True),
        ]
        y += 66
    parts += [said(28, y + 20 + 26 * n, line, size=18, kind="soft") for n, line in enumerate(note)]
    height = y + 20 + 26 * len(note)
    return picture(f"{title}: " + "; ".join(f"{f[0]} {f[2]}" for f in found), height, parts)


def speed() -> str:
    """CPU of all roles, from the table of performance.md."""
    names = {
        "ostraka-exact-sketch": ("Ostraka on a sketch: sealed, masked, verified", "green"),
        "blas-clear (on differences)": ("Multi-Krum in the clear, BLAS", "grey"),
        "byzfl-torch": ("Multi-Krum in the clear, ByzFL", "grey"),
        "flower": ("Multi-Krum in the clear, Flower", "grey"),
        "ostraka-exact": ("Ostraka without a sketch", "green"),
    }
    table = rows_under("performance.md", "Beside its peers")
    (head,) = [row for row in table if "all roles" in row]
    seconds = {
        row[0]: float(row[head.index("all roles")].split()[0])
        for row in table
        if row[0] in names and len(row) == len(head)
    }
    found = [
        (label, seconds[name], f"{seconds[name]:g} s", kind)
        for name, (label, kind) in names.items()
    ]
    return bars(
        "What privacy costs",
        [
            "CPU seconds of everybody in one round: 64 clients",
            "of 3.5 million values, on one thread",
        ],
        found,
        max(seconds.values()),
        ["ostraka bench peers --clients 64 --dimension 3500000"],
    )


def robustness() -> str:
    """Accuracy under the worst of six attacks, from the table of attacks.md."""
    table = rows_under("attacks.md", "What each rule is worth")
    (head,) = [row for row in table if row[0] == "attack" and "multi-krum" in row]
    (worst,) = [row for row in table if row[0].startswith("worst")]
    part = {
        name: float(cell.split()[0]) for name, cell in zip(head, worst, strict=True) if "%" in cell
    }
    names = {
        "plain averaging": ("plain averaging", "grey"),
        "multi-krum": ("Multi-Krum, the paper’s rule", "grey"),
        "the default": ("Ostraka’s default rule", "green"),
        "fltrust, 100 root images": ("fltrust, if one client can be trusted", "green"),
    }
    found = [
        (label, part[name], f"{part[name]:g} %", kind) for name, (label, kind) in names.items()
    ]
    return bars(
        "What an attack leaves of the model",
        [
            "Accuracy on MNIST after the worst of six attacks;",
            "9 of 25 clients attack, mean of three seeds",
        ],
        found,
        100,
        ["ostraka compare, with the options in docs/attacks.md"],
    )


def demo(recorded: str) -> str:
    """A terminal with what the demo has printed, without its table of stages."""
    shown = re.sub(r"\n\n Stage .*?Start-up[^\n]*", "", recorded.rstrip(), flags=re.DOTALL)
    lines = ["$ make demo", *(line.rstrip() for line in shown.splitlines())]
    longest = max(map(len, lines))
    size = min(21.0, (WIDE - 56) / (0.602 * longest))
    step = size * 1.42
    parts = [
        f'<circle class="{kind}" cx="{30 + 24 * n}" cy="30" r="7"/>'
        for n, kind in enumerate(("red", "grey", "green"))
    ]
    for n, line in enumerate(lines):
        kind = "green" if line.startswith("Accuracy") else "blue" if line.startswith("$") else "ink"
        parts.append(
            f'<text class="mono {kind}" x="28" y="{72 + n * step:.1f}" font-size="{size:.2f}" '
            f'xml:space="preserve">{escape(line)}</text>'
        )
    return picture("What the demo prints", round(72 + len(lines) * step), parts)


def drawn() -> dict[str, str]:
    """All pictures, by the names of their files."""
    return {
        "architecture.svg": architecture(),
        "round.svg": round_in_steps(),
        "shards.svg": shards(),
        "speed.svg": speed(),
        "robustness.svg": robustness(),
        "demo.svg": demo((FOLDER / "demo.txt").read_text()),
    }


def record_demo() -> str:
    """Run the demo, and return what it printed, without what differs from run to run."""
    done = subprocess.run(
        [sys.executable, "-m", "ostraka", "demo"],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"COLUMNS": "72", "NO_COLOR": "1"},
    )
    return printed(done.stdout)


def printed(output: str) -> str:
    """The lines of a run as a terminal of 64 columns shows them, without the report's name."""
    lines = [line.rstrip() for line in output.splitlines() if not line.startswith("Report:")]
    return "\n".join(textwrap.fill(each, 64) for each in lines).strip("\n") + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description="Draw the pictures of README and site.")
    parser.add_argument("--demo", action="store_true", help="run the demo first, and record it")
    FOLDER.mkdir(exist_ok=True)
    if parser.parse_args().demo:
        (FOLDER / "demo.txt").write_text(record_demo())
    for name, markup in drawn().items():
        (FOLDER / name).write_text(markup)


if __name__ == "__main__":
    main()

"""Every entry of tests/mutants.toml still speaks of a line of the code, and gives a reason."""

import tomllib
from pathlib import Path

import ostraka

LISTED = Path(__file__).parents[1] / "mutants.toml"
PACKAGE = Path(ostraka.__path__[0])


def test_every_listed_mutant_is_of_a_line_that_is_there():
    entries = tomllib.loads(LISTED.read_text())["equivalent"]
    assert entries
    for entry in entries:
        assert entry.keys() == {"module", "was", "becomes", "why"}
        lines = {line.strip() for line in (PACKAGE / entry["module"]).read_text().splitlines()}
        assert entry["was"] in lines, entry
        assert entry["was"] not in entry["becomes"]
        assert entry["why"].endswith(".")

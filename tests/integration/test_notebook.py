"""The notebooks of examples/: every cell runs, and says what is kept in the file."""

import json
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def printed(notebook):
    outputs = [each for cell in notebook["cells"] for each in cell.get("outputs", [])]
    return ["".join(each["text"]) for each in outputs if each["output_type"] == "stream"]


def pictures(notebook):
    outputs = [each for cell in notebook["cells"] for each in cell.get("outputs", [])]
    return sum(each["output_type"] == "display_data" for each in outputs)


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.ipynb")), ids=lambda path: path.name)
def test_a_notebook_runs_and_is_kept_with_what_it_shows(path):
    from notebook import run

    kept = json.loads(path.read_text())
    again = run(path)
    assert printed(again) == printed(kept)
    assert pictures(again) == pictures(kept) > 0

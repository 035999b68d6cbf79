"""The glossary is in order, complete in form, and speaks of what there is."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TERMS = {
    row[0]: row[1]
    for line in (ROOT / "docs" / "glossary.md").read_text("utf-8").splitlines()
    if len(row := [cell.strip() for cell in line.strip("|").split("|")]) == 2
    and row[0] not in ("term", "---")
}
CODE = "\n".join(path.read_text("utf-8") for path in sorted((ROOT / "src").rglob("*.py")))


def test_terms_are_in_alphabetical_order():
    assert len(TERMS) > 70
    assert list(TERMS) == sorted(TERMS, key=str.lower)


@pytest.mark.parametrize("term", TERMS)
def test_a_term_has_a_sentence_and_is_in_use(term):
    assert re.match(r"[A-Z`].*\.$", TERMS[term]), "a sentence, with a full stop"
    words = re.sub(r"\s+", r"[\\s_-]+", re.escape(term).replace(r"\ ", " "))
    assert re.search(rf"(?<![a-z]){words}", CODE, re.IGNORECASE), "no code uses this term"


@pytest.mark.parametrize(
    "outdated",
    [r"\bRoundConfig\b", r"\benclave_key\b", r"\bidentity_of\b", r"\bround.config\b"],
)
def test_words_that_were_replaced_are_gone(outdated):
    found = [line for line in CODE.splitlines() if re.search(outdated, line)]
    assert [line for line in found if "core.rules" not in line] == []

"""The documentation site: complete, without dead ends, and loading nothing from elsewhere."""

import argparse
import re
import shlex
from importlib import import_module
from pathlib import Path

import build_docs
import click
import pictures
import pytest
import reference
import typer

import ostraka
from ostraka.cli import app
from ostraka.core import rules
from ostraka.enclave import __main__ as enclave
from ostraka_lab.attacks import ATTACKS

ROOT = Path(__file__).parents[2]
PLACES = ("*.md", "docs/**/*.md", "deploy/**/*.md", "examples/**/README.md")
DOCUMENTS = sorted(path for place in PLACES for path in ROOT.glob(place))


# The reference.


def test_everything_in_the_reference_has_a_sentence():
    assert len([*reference.entries()]) > 300
    assert not reference.undescribed()


def test_an_entry_without_a_sentence_is_seen(monkeypatch):
    class Unexplained(ostraka.errors.OstrakaError):
        """It happens."""

    monkeypatch.setattr(ostraka.errors, "Unexplained", Unexplained, raising=False)
    assert reference.undescribed() == ["errors: Unexplained"]


def test_every_public_name_is_in_the_reference():
    page = reference.api_page()
    for module in ("ostraka", "ostraka.flower"):
        names = set(import_module(module).__all__) - reference.ELSEWHERE
        callables = [name for name in names if callable(getattr(import_module(module), name))]
        assert callables
        for name in callables:
            assert f"### `{module}.{name}`" in page


def test_every_command_and_option_is_in_the_reference():
    pages = reference.pages()
    text = pages["reference/commands.md"] + pages["reference/lab-commands.md"]
    for words in leaves(typer.main.get_command(app), []):
        if words[0] != "enclave":
            assert f"`ostraka {' '.join(words)}`" in text
    for words in ("run", "evidence", "migrate request", "migrate export", "migrate import"):
        assert f"`ostraka enclave {words}`" in text
    assert "`--key-broker`" in text


def leaves(command, words):
    """The words of every command that is not a group, by click's own tree."""
    if not isinstance(command, click.Group):
        return [words]
    found = []
    for name in command.list_commands(click.Context(command)):
        _, below, _ = command.resolve_command(click.Context(command), [name])
        found += leaves(below, [*words, name])
    return found


def test_every_setting_is_in_the_reference():
    from ostraka.federation_file import Enclave, Limits, Rounds, Storage, TermsTable

    page = reference.federation_page()
    for kind in (Enclave, Limits, Rounds, Storage, TermsTable):
        for name in kind.__dataclass_fields__:
            assert f"| `{name}` |" in page


def test_a_docstring_is_taken_apart():
    doc = "What it is.\n\nname: a word. key, lock: both of\n    them: always. More of it."
    rest, told = reference.split_fields(doc, ["name", "key", "lock"])
    assert rest == "What it is."
    assert told == {
        "name": "a word.",
        "key": "both of them: always. More of it.",
        "lock": "both of them: always. More of it.",
    }


def test_every_rule_and_attack_is_cited_with_a_link():
    papers = (ROOT / "docs/papers.md").read_text()
    cited = [part.citation for part in (rules.RULES | rules.PRE).values()]
    cited += [paper for each in ATTACKS.values() for paper in each.paper.split(", ")]
    for citation in set(cited) - {"none: a plain idea", "against rules that look at spread"}:
        if re.search(r"\d{4}", citation) is None:
            continue
        author = re.findall(r"^(?:El )?\S+?(?=,| )", citation)[0]
        year = re.findall(r"\b(?:19|20)\d\d\b", citation)[0]
        entry = rf"^- {author}\b[^\n]*?{year}.*?\]\(https://"
        assert re.search(entry, papers, re.DOTALL | re.MULTILINE), citation


# Links between documents.


def anchors(path):
    """The anchors of a document's headings, as a forge makes them."""
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in headings}


def dead_ends(path):
    """Links, anchors and pictures of a document that are not there."""
    text = re.sub(r"`[^`]*`", "", path.read_text())
    links = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'<img src="([^"]+)"', text)
    for link in links:
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = path.parent / name if name else path
        if not target.exists() or (anchor and anchor not in anchors(target)):
            yield link


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_and_anchors_of_a_document_hold(path):
    assert not [*dead_ends(path)]


def test_a_dead_end_is_seen(tmp_path):
    page = tmp_path / "page.md"
    page.write_text('# One, two\n\n[a](#one-two) [b](#three) [c](no.md) <img src="no.svg">')
    assert [*dead_ends(page)] == ["#three", "no.md", "no.svg"]


# Commands in documents.


def shown_commands(text):
    """Every `ostraka ...` that a document shows, without comments and shell around it."""
    blocks = re.findall(r"^```(?:console|sh)(?: .*)?\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    joined = "\n".join(blocks).replace("\\\n", " ")
    indented = "\n".join(
        re.findall(r"^ {4,}(ostraka .*)$", text.replace("\\\n", " "), re.MULTILINE)
    )
    for line in (joined + "\n" + indented).splitlines():
        bare = re.sub(r"\s#\s.*$", "", line)
        for part in re.split(r"&&|;|\bdo\b|\|", bare):
            words = part.strip().removeprefix("$ ")
            words = re.sub(r"\s*(>\s*\S+|2>&1|&|done)\s*", " ", words).strip()
            if words.startswith("ostraka "):
                yield words


def parse_dry(words):
    """Read a command line with the real command tree, and run nothing. Raises what it raises.

    Of a line that is shortened by "...", only the options that it has are looked at.
    """
    if words[0] == "enclave":
        parser = enclave.parser()
        parser.exit_on_error = False
        return parser.parse_args(words[1:])
    command: click.Command | None = typer.main.get_command(app)
    while isinstance(command, click.Group):
        if words[:1] in (["--version"], ["--help"], ["--install-completion"]):
            return None
        _, command, words = command.resolve_command(click.Context(command), words)
    assert command is not None
    if "..." in words:
        known = {option for each in command.params for option in each.opts}
        assert {word for word in words if word.startswith("--")} <= known
    elif "--help" not in words and "-h" not in words:
        command.make_context(command.name, list(words), resilient_parsing=False)
    return command


SHOWN = [
    pytest.param(line, id=f"{path.name}: {line}"[:90])
    for path in DOCUMENTS
    if path.name != "CHANGELOG.md"
    for line in shown_commands(path.read_text())
]


def test_there_are_commands():
    assert len(SHOWN) > 60


@pytest.mark.parametrize("line", SHOWN)
def test_a_command_that_a_document_shows_is_one(line):
    parse_dry(shlex.split(line)[1:])


@pytest.mark.parametrize(
    "line",
    [
        "ostraka bench piers",
        "ostraka demo --atack gaussian",
        "ostraka enclave run --unsafe-simulate",
        "ostraka sign federation.toml",
    ],
)
def test_a_command_that_is_none_is_seen(line):
    with pytest.raises((click.UsageError, SystemExit, argparse.ArgumentError)):
        parse_dry(shlex.split(line)[1:])


# Pictures.


@pytest.mark.parametrize("name", ["architecture.svg", "round.svg", "speed.svg", "robustness.svg"])
def test_a_picture_is_as_it_is_drawn(name):
    """After a change of a table or of the script: make pictures."""
    assert (ROOT / "docs/pictures" / name).read_text() == pictures.drawn()[name]


def test_the_look_at_the_demo_is_as_it_is_drawn():
    recorded = (ROOT / "docs/pictures/demo.txt").read_text()
    assert (ROOT / "docs/pictures/demo.svg").read_text() == pictures.demo(recorded)


def test_pictures_load_nothing():
    for path in ROOT.glob("docs/pictures/*.svg"):
        addresses = re.findall(r"https?://[^\"' ]*", path.read_text())
        assert addresses == ["http://www.w3.org/2000/svg"]


# The built site.


@pytest.mark.parametrize(
    ("page", "wrong"),
    {
        '<a href="other.html">': ["index.html: other.html leads nowhere"],
        '<a href="#nowhere">': ["index.html: #nowhere leads nowhere"],
        '<a id="here" href="#here">': [],
        '<img src="https://elsewhere.example/a.png">': [
            "index.html loads https://elsewhere.example/a.png"
        ],
        '<link href="//elsewhere.example/a.css">': ["index.html loads //elsewhere.example/a.css"],
        '<a href="https://elsewhere.example/">': [],
    }.items(),
)
def test_what_is_wrong_with_a_page_is_seen(tmp_path, page, wrong):
    (tmp_path / "index.html").write_text(page)
    assert build_docs.broken_links(tmp_path) + build_docs.foreign_requests(tmp_path) == wrong


def test_a_style_that_loads_a_font_is_seen(tmp_path):
    (tmp_path / "a.css").write_text("@font-face { src: url(https://elsewhere.example/a.woff) }")
    assert build_docs.foreign_requests(tmp_path) == ["a.css loads https://elsewhere.example/a.woff"]


@pytest.mark.slow
def test_the_site_is_built_without_a_warning():
    """`build` raises for a warning, a dead link or anchor, and a request to another host."""
    pytest.importorskip("zensical")
    site = build_docs.build()
    found = dict(build_docs.pages(site))
    assert len(found) > 60
    assert all("Content-Security-Policy" in path.read_text() for path in found)
    assert (site / "reference/errors/index.html") in found

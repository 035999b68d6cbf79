"""Build the documentation site: python tools/build_docs.py

The site is the Markdown of `docs/`, the files of the repository that it links to, and the pages
that `reference.py` makes from the code. They are put together in `build/docs`, where every link
leads to a page, and Zensical turns them into `site/`. The build fails if Zensical warns, if a link
or an anchor leads nowhere, or if a page would load anything from another host.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

import notebook
import reference

ROOT = Path(__file__).parents[1]
CONFIG = ROOT / "zensical.toml"
STAGED = ROOT / "build" / "docs"
SITE = ROOT / "site"

_LINK = re.compile(r"(!?\[(?:[^\[\]]|\[[^\[\]]*\])*\]\()([^)\s]+)(\))")
_CODE = re.compile(r"(^ *```.*?^ *```|`[^`\n]*`)", re.DOTALL | re.MULTILINE)
_PICTURES = {".svg", ".png"}
_LANGUAGES = {".py": "py", ".toml": "toml", ".service": "ini", ".template": "toml"}
_ALONGSIDE = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "deploy", "examples")
_NOT_SHOWN = {"__pycache__", ".ipynb_checkpoints"}


class Broken(Exception):
    """The site cannot be built as it is."""


def main() -> int:
    parser = argparse.ArgumentParser(description="Build the documentation site into site/.")
    parser.parse_args()
    try:
        build()
    except Broken as why:
        sys.stderr.write(f"{why}\n")
        return 1
    sys.stdout.write(f"{SITE / 'index.html'}\n")
    return 0


def build() -> Path:
    """Build everything, and return the folder of the site. Raises Broken."""
    stage()
    shutil.rmtree(SITE, ignore_errors=True)
    done = subprocess.run(  # noqa: S603 (Zensical, with arguments of ours)
        [sys.executable, "-m", "zensical", "build", "--strict", "--clean", "-f", str(CONFIG)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"NO_COLOR": "1"},
    )
    said = done.stdout + done.stderr
    if done.returncode or "warning" in said.lower() or "No issues found" not in said:
        raise Broken(said)
    if wrong := [*broken_links(SITE), *foreign_requests(SITE)]:
        raise Broken("\n".join(wrong))
    return SITE


# What the site is made of.


def stage() -> None:
    """Put all pages together, with links that hold there. Raises Broken."""
    shutil.rmtree(STAGED, ignore_errors=True)
    waiting = [path for path in sorted((ROOT / "docs").rglob("*")) if path.is_file()]
    waiting += [ROOT / "docs" / "adr", *(ROOT / name for name in _ALONGSIDE)]
    done: set[Path] = set()
    while waiting:
        source = waiting.pop()
        if source in done:
            continue
        done.add(source)
        page, linked = _staged(source)
        target = STAGED / place(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(page, bytes):
            target.write_bytes(page)
        else:
            target.write_text(page)
        waiting += linked
    for name, page in reference.pages().items():
        (STAGED / name).parent.mkdir(parents=True, exist_ok=True)
        (STAGED / name).write_text(page)


def place(source: Path) -> PurePosixPath:
    """Where a file of the repository is in the site."""
    path = PurePosixPath(source.relative_to(ROOT).as_posix())
    inside = path.parts[0] == "docs"
    path = PurePosixPath(*path.parts[1:]) if inside else "repository" / path
    if source.is_dir():
        return path / "index.md"
    if path.name == "README.md":
        return path.with_name("index.md")
    if path.suffix in {".md", *_PICTURES} or inside:
        return path
    return path.with_name(f"{path.name}.md")


def _staged(source: Path) -> tuple[str | bytes, list[Path]]:
    """A page of the site, and the files of the repository that it links to."""
    if source.is_dir():
        return _listing(source)
    if source.suffix == ".md":
        return _relinked(_as_python_markdown(source.read_text()), source)
    if source.suffix == ".ipynb":
        return notebook.as_markdown(source), []
    if place(source).suffix != ".md":
        return source.read_bytes(), []
    language = _LANGUAGES.get(source.suffix, "text")
    name = source.relative_to(ROOT).as_posix()
    return f"# {name}\n\n````{language}\n{source.read_text()}\n````\n", []


def _listing(folder: Path) -> tuple[str, list[Path]]:
    """A page for a folder: its README if it has one, and all that lies in it."""
    inside = [
        each
        for each in sorted(folder.rglob("*"))
        if each.is_file() and not _NOT_SHOWN & set(each.parts) and each.name != "README.md"
    ]
    page = f"# {folder.relative_to(ROOT).as_posix()}\n\n"
    linked: list[Path] = []
    if (readme := folder / "README.md").exists():
        page, linked = _relinked(_as_python_markdown(readme.read_text()), readme)
        page += "\n\n## Files\n\n"
    for each in inside:
        name = _title(each) or each.relative_to(folder).as_posix()
        page += f"- [{name}]({_from(place(folder), place(each))})\n"
    return page, [*linked, *inside]


def _title(path: Path) -> str:
    """The heading of a document; empty for other files."""
    found = re.match(r"# (.*)", path.read_text()) if path.suffix == ".md" else None
    return found[1] if found else ""


def _relinked(page: str, source: Path) -> tuple[str, list[Path]]:
    """A page whose links lead to places in the site, and what it links to."""
    linked: list[Path] = []

    def change(link: re.Match[str]) -> str:
        address = urlsplit(link[2])
        if address.scheme or not address.path:
            return link[0]
        target = (source.parent / unquote(address.path)).resolve()
        if not target.exists():
            raise Broken(f"{source.relative_to(ROOT)}: {link[2]} leads nowhere")
        if target.is_dir() and (target / "README.md").exists() and _in_docs(target):
            target /= "README.md"
        linked.append(target)
        anchor = f"#{address.fragment}" if address.fragment else ""
        return f"{link[1]}{_from(place(source), place(target))}{anchor}{link[3]}"

    parts = _CODE.split(page)
    return "".join(p if n % 2 else _LINK.sub(change, p) for n, p in enumerate(parts)), linked


def _in_docs(path: Path) -> bool:
    return path.is_relative_to(ROOT / "docs")


def _from(page: PurePosixPath, target: PurePosixPath) -> str:
    return PurePosixPath(os.path.relpath(target, page.parent)).as_posix()


def _as_python_markdown(page: str) -> str:
    """Indent the parts of numbered lists by four, and put a blank line before lists.

    Documents are written as GitHub reads them, where three and none are enough.
    """
    lines: list[str] = []
    numbered = fenced = False
    for line in page.splitlines():
        fenced ^= line.lstrip().startswith("```")
        item = re.match(r"(\d+\.|-) ", line)
        if item and not fenced and lines and lines[-1].startswith("**"):
            lines.append("")
        if line.strip() and not line.startswith(" "):
            numbered = bool(item) and item is not None and item[1] != "-"
        lines.append(f" {line}" if numbered and line.startswith("   ") else line)
    return "\n".join(lines) + "\n"


# What is checked in what was built.


class _Page(HTMLParser):
    """The anchors of a page, where it leads, and what it loads by itself."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag in ("link", "use", "image") and "href" in given:
            self.loads.append(given["href"])
        self.loads += [given[name] for name in ("src", "srcset", "data") if name in given]
        self.loads += re.findall(r"url\(([^)]*)\)", given.get("style", ""))


def pages(site: Path) -> Iterator[tuple[Path, _Page]]:
    for path in sorted(site.rglob("*.html")):
        yield path, _Page(path.read_text())


def broken_links(site: Path) -> list[str]:
    """Every link, anchor or file that a page refers to within the site and that is not there."""
    found = dict(pages(site))
    return [
        f"{path.relative_to(site)}: {link} leads nowhere"
        for path, page in found.items()
        if path.name != "404.html"
        for link in page.links + page.loads
        if not _holds(link, path, found)
    ]


def _holds(link: str, path: Path, found: dict[Path, _Page]) -> bool:
    address = urlsplit(link)
    if address.scheme or address.netloc:
        return True
    target = path
    if address.path:
        target = Path(os.path.normpath(path.parent / unquote(address.path)))
        target = target / "index.html" if target.is_dir() else target
    if not target.is_file():
        return False
    fragment = unquote(address.fragment)
    return not fragment or target not in found or fragment in found[target].anchors


def foreign_requests(site: Path) -> list[str]:
    """Everything that a page, a style or a picture would load from another host."""
    wrong = [
        f"{path.relative_to(site)} loads {each}"
        for path, page in pages(site)
        for each in page.loads
        if urlsplit(each).netloc
    ]
    for path in [*site.rglob("*.css"), *site.rglob("*.svg")]:
        text = path.read_text()
        urls = re.findall(
            r"(?:url\(|@import |(?:xlink:)?href=)[\"']?((?:https?:)?//[^\"')\s]+)", text
        )
        wrong += [f"{path.relative_to(site)} loads {each}" for each in urls]
    return wrong


if __name__ == "__main__":
    sys.exit(main())

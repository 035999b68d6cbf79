"""What benchmarks need, and how they end: figures in a folder, a page of them, and JSON."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import click
import typer
from click.core import ParameterSource
from rich.table import Table

from ostraka.cli.output import show
from ostraka.errors import ConfigError, installing
from ostraka_lab.bench import results
from ostraka_lab.bench.results import Parts, count

FOLDER = Path("bench-results")

Out = Annotated[
    Path,
    typer.Option(
        metavar="FOLDER",
        help="For the figures, and for report.html, which shows all of them.",
    ),
]
Fresh = Annotated[
    bool, typer.Option("--fresh", help="Start over instead of resuming a run that was stopped.")
]
SMALL = (
    "--quick runs small sizes, to see it work: these figures and ratios say nothing of full size, "
    "where fixed costs weigh less."
)
_NOT_SHOWN = ("as_json", "out", "fresh")


def require_torch() -> None:
    """Raise ModuleNotFoundError here: the process that trains could only end without figures."""
    if find_spec("torch") is None:
        raise ModuleNotFoundError("No module named 'torch'", name="torch")


@contextmanager
def keeping(
    ctx: typer.Context,
    out: Path,
    options: dict[str, Any],
    *,
    fresh: bool,
    name: str | None = None,
) -> Iterator[Parts]:
    """Keep the parts of this command in its folder, and say so if the command is stopped.

    name: of the benchmark, if it is not the command's.
    """
    path = out / f"{name or ctx.info_name}.parts.jsonl"
    parts = Parts(path, options, lambda text: click.echo(text, err=True), fresh=fresh)
    try:
        yield parts
    except BaseException:
        if parts.kept:
            again = "the same command, without --fresh," if fresh else "the same command"
            kept = f"{count(parts.kept)} kept in {path}"
            click.echo(f"stopped with {kept}: {again} resumes from there", err=True)
        raise


def finish(
    ctx: typer.Context,
    figures: dict[str, Any],
    *shown: Table | str,
    out: Path,
    as_json: bool,
    parts: Parts | None = None,
    name: str | None = None,
) -> None:
    """Keep the figures, draw the page, and show it all. name: as in `keeping`."""
    name = name or str(ctx.info_name)
    figures = {"command": command_line(ctx)} | figures
    page, where = _kept(out, name, figures, parts)
    show(*shown, where, figures=figures | {"report": page}, as_json=as_json)


def _kept(
    out: Path, name: str, figures: dict[str, Any], parts: Parts | None
) -> tuple[str | None, str]:
    """Save the figures and draw the page, or say why not: they must not be lost to a full disk."""
    try:
        results.save(out, name, figures)
        if parts:
            parts.clear()
        page = _page(out)
    except (OSError, ConfigError) as failed:
        return None, f"No report: {failed}"
    return page, f"Report: {page}" if page else f"No report: {installing('lab')}"


def command_line(ctx: typer.Context) -> str:
    """Write the command that was typed."""
    words = ["ostraka", "bench", str(ctx.info_name)]
    for parameter in ctx.command.params:
        given = ctx.get_parameter_source(parameter.name or "") is ParameterSource.COMMANDLINE
        if given and parameter.name not in _NOT_SHOWN:
            words += _words(parameter, ctx.params[str(parameter.name)])
    return " ".join(words)


def _words(parameter: click.Parameter, value: Any) -> list[str]:
    flag = parameter.opts[0]
    if value is True:
        return [flag]
    values = value if isinstance(value, list | tuple) else [value]
    return [word for each in values for word in (flag, str(each))]


def _page(folder: Path) -> str | None:
    """Draw the page, if the extra for plots is installed."""
    try:
        from ostraka_lab.bench import report
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.startswith("ostraka"):
            raise
        return None
    return str(report.write(folder))

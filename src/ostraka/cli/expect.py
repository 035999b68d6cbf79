"""`ostraka attest expect`: the measurement of a release that is not the one that runs."""

import platform
import re
from importlib import metadata
from pathlib import Path
from typing import Annotated

import typer

from ostraka.attestation.policy import toml_line
from ostraka.cli.output import Json, pairs, show
from ostraka.cli.releases import (
    OURS,
    Installation,
    Release,
    installed_versions,
    opened,
    pinned_versions,
    release_of,
)
from ostraka.errors import ConfigError


def expect(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="RELEASE",
            help="A wheel, a virtual environment or its site-packages, or an image's archive as "
            "`podman save` writes it.",
        ),
    ],
    *,
    constraints: Annotated[
        Path | None,
        typer.Option(help="The versions of the libraries that a wheel will be installed with."),
    ] = None,
    python: Annotated[
        str | None, typer.Option(help="The version of Python that it will run on, such as 3.11.7.")
    ] = None,
    within: Annotated[
        str | None,
        typer.Option(help="The folder in an image that holds `ostraka`, if there are several."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Print the measurement to expect of a wheel, an environment or an image.

    It is what `ostraka attest measure` prints where that release is installed, and comes with the
    lines for a policy. Nothing of the release is imported or run.

    A wheel does not say which Python and which libraries it will meet: they are those of
    --constraints and --python, or else those that this command itself runs on. An environment and
    an image say it themselves.

    A simulated platform reports this measurement. A real one measures its whole image;
    docs/attestation.md says how to compute that.

    \b
    Examples:
      ostraka attest expect dist/*.whl --constraints constraints.txt
      ostraka attest expect image.tar --json
      ostraka attest expect /opt/ostraka
    """
    with opened(path, within) as found:
        release = release_of(found.package)
        on, from_where = _python(found, python)
        libraries = _libraries(found, release, constraints)
        measured = release.measure(found.package, (("python", on), *libraries.items()))
    rows = [("measurement", measured.digest.hex()), ("code", measured.code.hex()), *found.source]
    rows.append(
        ("of", f"{len(release.modules)} modules, {measured.lines} lines (and generated code)")
    )
    rows += [("python", f"{on} ({from_where})"), *libraries.items()]
    lines = "\n".join(("[simulation]", toml_line("mrenclave", (measured.digest,))))
    show(
        pairs(rows),
        *_differences(release),
        f"\nFor policy.toml; with a real TEE, list what the TEE measures:\n\n{lines}",
        figures={
            "measurement": measured.digest.hex(),
            "code": measured.code.hex(),
            **{name.replace(" ", "_"): value for name, value in found.source},
            "modules": len(release.modules),
            "lines": measured.lines,
            "dependencies": dict(measured.dependencies),
            "policy": lines,
        },
        as_json=as_json,
    )


def _python(found: Installation, given: str | None) -> tuple[str, str]:
    """Return the version of Python and where it comes from."""
    if given is not None:
        if not re.fullmatch(r"\d+\.\d+\.\d+\w*\+?", given):
            raise ConfigError(f"--python is a whole version such as 3.11.7; got {given!r}")
        return given, "by --python"
    if found.python is not None:
        return found.python, "as it is installed"
    return platform.python_version(), "of this command; --python says another"


def _libraries(found: Installation, release: Release, constraints: Path | None) -> dict[str, str]:
    if installed := installed_versions(found.site, release.dependencies):
        if constraints is not None:
            raise ConfigError("--constraints is for a wheel: this holds its libraries itself")
        return installed
    if constraints is not None:
        return pinned_versions(constraints, release.dependencies)
    return {name: _version_here(name) for name in release.dependencies}


def _version_here(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        raise ConfigError(
            f"{name}, which this release loads, is not installed here: say its version by "
            "--constraints"
        ) from None


def _differences(release: Release) -> list[str]:
    """Say if a release measures other modules than this one: fewer would be a reason to look."""
    if set(release.modules) == set(OURS.modules):
        return []
    more = sorted({*release.modules} - {*OURS.modules})
    fewer = sorted({*OURS.modules} - {*release.modules})
    return [
        "Its list of measured modules is not that of the release you run: "
        + "; ".join(
            f"{word} {', '.join(names)}"
            for word, names in (("more:", more), ("fewer:", fewer))
            if names
        )
    ]

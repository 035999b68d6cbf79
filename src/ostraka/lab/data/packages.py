"""Fetches a package with the client that the user has for it: npm, or Debian's apt-get."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from ostraka.errors import ServiceError
from ostraka.lab.data.entry import Package

# Of the slowest line that is worth waiting for.
_MOST_S = 3600.0


def fetch(package: Package, space: Path) -> Path:
    """The package's file, in this empty folder. Raises ServiceError, which says what to do."""
    client = shutil.which(package.client)
    if client is None:
        raise ServiceError(f"{package.client} is not installed: {_HELP[package.client]}")
    try:
        done = subprocess.run(  # noqa: S603
            [client, *_ARGUMENTS[package.client](package)],
            cwd=space,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_MOST_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ServiceError(f"{package}: it took too long") from None
    files = list(space.iterdir())
    if done.returncode or len(files) != 1:
        raise ServiceError(f"{package}: {_said(done.stderr)}; {_HELP[package.client]}")
    return files[0]


def _said(errors: str) -> str:
    """The first line that is no warning."""
    lines = (line.strip() for line in errors.splitlines())
    return next((line for line in lines if line and not line.startswith("W:")), "it failed")


def _npm(package: Package) -> list[str]:
    # A package is only downloaded here: no code of it ever runs.
    options = ["--loglevel=error", "--ignore-scripts", "--fetch-retries=1"]
    return ["pack", *options, f"{package.name}@{package.version}"]


def _apt_get(package: Package) -> list[str]:
    return ["download", "--quiet", package.name]


_ARGUMENTS: dict[str, Callable[[Package], list[str]]] = {"npm": _npm, "apt-get": _apt_get}
_HELP = {
    "npm": "npm comes with Node.js (on Debian: `sudo apt-get install npm`)",
    "apt-get": "on Debian, `sudo apt-get update` may help; elsewhere its packages cannot be had",
}

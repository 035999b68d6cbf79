"""Builds a release twice, and keeps it only if both are the same: `make dist`.

The wheel and the source distribution are built from two copies of what git tracks, in folders of
other names, under another time zone, language and umask. Beside them go a bill of materials
(SBOM, CycloneDX) of the versions in constraints.txt, and SHA256SUMS. The time in all of them is
that of the last commit.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tomllib
import venv
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[1]
CONSTRAINTS = ROOT / "constraints.txt"
# What must make no difference.
CIRCUMSTANCES: tuple[tuple[str, int, dict[str, str]], ...] = (
    ("a", 0o022, {"TZ": "UTC", "LC_ALL": "C"}),
    ("another-folder", 0o077, {"TZ": "Asia/Kathmandu", "LC_ALL": "C.UTF-8"}),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    parser.add_argument("--tools", action="store_true", help="print what this needs, and end")
    asked = parser.parse_args()
    if asked.tools:
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        say(*extras["optional-dependencies"]["dist"])
        return
    try:
        release(asked.out)
    except (Different, subprocess.CalledProcessError) as failed:
        sys.exit(f"{failed}")


class Different(Exception):
    """Two builds of the same files have other bytes."""


def release(out: Path) -> None:
    """Build twice, compare, add the bill of materials and the sums, and put all into `out`."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH") or git("log", "-1", "--format=%ct")
    changed = git("status", "--porcelain", "--untracked-files=no")
    with TemporaryDirectory(prefix="ostraka-dist-") as folder:
        builds = []
        for name, umask, settings in CIRCUMSTANCES:
            tree = copy(Path(folder) / name / "tree")
            environment = {**os.environ, **settings, "SOURCE_DATE_EPOCH": epoch}
            builds.append(build(tree, Path(folder) / name / "dist", environment, umask))
        first, second = map(sums, builds)
        for file in sorted({*first, *second}):
            say(f"{first.get(file, '-')}  {file}")
        require_equal(first, second)
        say("built twice, the same bytes")
        bill_of_materials(builds[0], epoch)
        write_sums(builds[0])
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(builds[0], out)
    say(*(f"{out.name}/{path.name}" for path in sorted(out.iterdir())))
    if changed:
        say("NOT A RELEASE: these files are changed and not committed", changed)


def require_equal(first: Mapping[str, str], second: Mapping[str, str]) -> None:
    if first != second:
        names = {*first, *second}
        other = sorted(name for name in names if first.get(name) != second.get(name))
        raise Different(f"two builds differ: {', '.join(other)}")


def copy(folder: Path) -> Path:
    """Put what git tracks, as it is here, into this folder."""
    for name in git("ls-files", "-z").split("\0"):
        if name and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, folder / name)
    return folder


def build(tree: Path, out: Path, environment: Mapping[str, str], umask: int) -> Path:
    """Build the source distribution, and from that the wheel."""
    environment = {**environment, "PIP_CONSTRAINT": str(CONSTRAINTS)}
    run("-m", "build", "--outdir", out, tree, env=environment, umask=umask)
    (wheel,) = out.glob("*.whl")
    if not wheel.name.endswith("-any.whl"):
        # Looks on which systems the loops in C can be loaded, and names them in the wheel. It
        # writes modes by the umask into the new one, so that is always the same here.
        path = f"{Path(sys.executable).parent}:{environment['PATH']}"
        command = ("-m", "auditwheel", "repair", "--wheel-dir", out, wheel)
        run(*command, env={**environment, "PATH": path}, umask=0o022)
        wheel.unlink()
    return out


def bill_of_materials(out: Path, epoch: str) -> Path:
    """Write what the wheel needs, with versions and licences, from an installation of it."""
    (wheel,) = out.glob("*.whl")
    version = wheel.name.split("-")[1]
    path = out / f"ostraka-{version}.cdx.json"
    with TemporaryDirectory(prefix="ostraka-sbom-") as folder:
        venv.create(folder, with_pip=False)
        python = Path(folder) / "bin" / "python"
        run("-m", "pip", "--python", python, "install", "--quiet", "-c", CONSTRAINTS, wheel)
        environment = {**os.environ, "SOURCE_DATE_EPOCH": epoch}
        options = ("--output-reproducible", "--mc-type", "library", "-o", path)
        about = ("--pyproject", ROOT / "pyproject.toml")
        run("-m", "cyclonedx_py", "environment", *about, *options, python, env=environment)
    bill = json.loads(path.read_text())
    # pyproject.toml has no version, and names no file.
    hashes = [{"alg": "SHA-256", "content": sha256(wheel)}]
    bill["metadata"]["component"] |= {"version": version, "hashes": hashes}
    path.write_text(json.dumps(bill, indent=2) + "\n")
    return path


def sums(folder: Path) -> dict[str, str]:
    return {path.name: sha256(path) for path in sorted(folder.iterdir())}


def write_sums(folder: Path) -> None:
    """Write SHA256SUMS, as `sha256sum --check` reads it."""
    lines = [f"{digest}  {name}\n" for name, digest in sums(folder).items()]
    (folder / "SHA256SUMS").write_text("".join(lines))


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def git(*arguments: str) -> str:
    return subprocess.run(  # noqa: S603 (git of this machine, and no shell)
        ["git", *arguments],  # noqa: S607
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.rstrip()


def run(*arguments: object, env: Mapping[str, str] | None = None, umask: int = -1) -> None:
    subprocess.run(  # noqa: S603 (our own Python, and no shell)
        [sys.executable, *map(str, arguments)], check=True, env=env, umask=umask, stdout=sys.stderr
    )


def say(*lines: str) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()


if __name__ == "__main__":
    main()

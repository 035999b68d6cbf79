"""Finds the code of a release in a wheel, an installation or an image, and never runs any of it.

A wheel or an image is another's file: its members are read one by one within bounds, and only
regular files with plain names are written, to a folder that is removed afterwards.
"""

import ast
import hashlib
import importlib.metadata
import re
import stat
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from ostraka.cli.images import read_image
from ostraka.enclave import measurement
from ostraka.enclave.measurement import Measurement, measure
from ostraka.errors import ConfigError

# Ours has a few hundred members, of 3 MB together.
MEMBERS, MEMBER_BYTES, WHEEL_BYTES = 10_000, 2**24, 2**28
# What a wheel of ours installs.
_PACKAGES = ("ostraka", "ostraka_lab")
_LISTS = ("MEASURED", "LIBRARIES", "DEPENDENCIES")
# A list that names something outside of its package would measure files of this machine.
_NAMES = {
    "MEASURED": re.compile(r"ostraka(\.[A-Za-z_]\w*)*"),
    "LIBRARIES": re.compile(r"([A-Za-z_]\w*/)*[A-Za-z_]\w*\.so"),
    "DEPENDENCIES": re.compile(r"[a-z0-9]+(-[a-z0-9]+)*"),
}
_PINNED = re.compile(r"([A-Za-z0-9._-]+)(?:\[[^]]*\])?\s*==\s*([A-Za-z0-9.!+_-]+)")
_CHUNK = 2**20


@dataclass(frozen=True)
class Installation:
    """Code that lies in a folder and is not run.

    site: the folder that holds `ostraka`. source: what it was found in, in pairs to show. python:
    the version that it is installed for, if known.
    """

    site: Path
    source: tuple[tuple[str, str], ...]
    python: str | None

    @property
    def package(self) -> Path:
        return self.site / "ostraka"


@dataclass(frozen=True)
class Release:
    """What a release says about its own measurement: the modules, libraries and dependencies."""

    modules: tuple[str, ...]
    libraries: tuple[str, ...]
    dependencies: tuple[str, ...]

    def measure(self, package: Path, versions: Sequence[tuple[str, str]]) -> Measurement:
        return measure(package, modules=self.modules, libraries=self.libraries, versions=versions)


OURS = Release(measurement.MEASURED, measurement.LIBRARIES, measurement.DEPENDENCIES)


@contextmanager
def opened(path: Path, within: str | None = None) -> Iterator[Installation]:
    """Find the installation in this wheel, folder or image. Raises ConfigError if there is none.

    within: the folder in an image that holds `ostraka`, if there are several.
    """
    if not path.exists():
        raise ConfigError(f"{path}: No such file or directory")
    is_layout = path.is_dir() and (path / "oci-layout").is_file()
    is_wheel = path.is_file() and _begins_with(path, b"PK")
    is_image = is_layout or (path.is_file() and not is_wheel)
    if within is not None and not is_image:
        raise ConfigError("--within chooses a folder of an image")
    with TemporaryDirectory(prefix="ostraka-") as folder:
        if is_wheel:
            yield _unpacked_wheel(path, Path(folder))
        elif is_image:
            yield _unpacked_image(path, within, Path(folder))
        else:
            yield _installed(path)


def release_of(package: Path) -> Release:
    """Read a release's own lists, as text. Raises ConfigError if it measures in another way.

    A release may measure more modules than this one. How it measures them must be the same, or the
    result would not be what it reports of itself.
    """
    theirs = package / "enclave" / "measurement.py"
    try:
        if theirs.stat().st_size > _CHUNK:
            raise ConfigError(f"{theirs.name} is too large to be that of a release")
        lists, rest = _parsed(theirs.read_bytes())
    except OSError:
        raise ConfigError(
            "holds no ostraka/enclave/measurement.py: no release of Ostraka"
        ) from None
    except (SyntaxError, ValueError, RecursionError, MemoryError) as broken:
        raise ConfigError(f"its ostraka/enclave/measurement.py is not readable: {broken}") from None
    if rest != _parsed(Path(str(measurement.__file__)).read_bytes())[1]:
        raise ConfigError(
            "this release measures in another way than the one that you run: install it, and ask "
            "it by `ostraka attest measure`"
        )
    return Release(*(lists[name] for name in _LISTS))


def installed_versions(site: Path, dependencies: Sequence[str]) -> dict[str, str]:
    """Read the versions of these distributions from what is installed in this folder.

    Returns nothing if none of them is there, as in a wheel.
    """
    found: dict[str, str] = {}
    for each in importlib.metadata.distributions(path=[str(site)]):
        name = _normal(each.metadata["Name"] or "")
        if name in dependencies and found.setdefault(name, each.version) != each.version:
            raise ConfigError(
                f"holds {name} {found[name]} and {each.version}: which one is loaded?"
            )
    return {name: found.get(name, "not installed") for name in dependencies} if found else {}


def pinned_versions(path: Path, dependencies: Sequence[str]) -> dict[str, str]:
    """Read the versions of these distributions from a file of constraints."""
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeError) as unreadable:
        raise ConfigError(f"{path}: {unreadable}") from None
    found = {_normal(m[1]): m[2] for m in map(_PINNED.match, lines) if m}
    if missing := [name for name in dependencies if name not in found]:
        raise ConfigError(f"{path} has no line such as {missing[0]}==1.0")
    return {name: found[name] for name in dependencies}


def _parsed(source: bytes) -> tuple[dict[str, tuple[str, ...]], str]:
    """The lists of a measurement.py, and all of the rest of it. Nothing is evaluated but tuples."""
    tree = ast.parse(source)
    lists: dict[str, tuple[str, ...]] = {}
    rest = []
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if name in _LISTS:
                if name in lists:
                    raise ConfigError(f"its measurement.py has {name} twice")
                lists[name] = _names(name, ast.literal_eval(value))
            case _:
                rest.append(ast.dump(node))
    if missing := [name for name in _LISTS if name not in lists]:
        raise ConfigError(f"its measurement.py has no list {missing[0]}: another way of measuring")
    return lists, "\n".join(rest)


def _names(name: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, tuple):
        raise ConfigError(f"{name} in its measurement.py is no list of names")
    for each in value:
        if not (isinstance(each, str) and _NAMES[name].fullmatch(each)):
            raise ConfigError(f"{name} in its measurement.py has {each!r}, which is no name")
    return value


def _installed(path: Path) -> Installation:
    """An installation in this folder: site-packages, or an environment with one."""
    sites = [path] if (path / "ostraka").is_dir() else []
    sites = sites or [
        p for p in path.glob("lib/python3*/site-packages") if (p / "ostraka").is_dir()
    ]
    if len(sites) != 1:
        raise ConfigError(
            f"{path} holds {len(sites)} installations of Ostraka: name a wheel, an image, a "
            "virtual environment, or the folder that holds the package `ostraka`"
        )
    (site,) = sites
    return Installation(site, (("installation", str(site)),), _python_of(site))


def _python_of(site: Path) -> str | None:
    """The version of Python that an environment was made for, by its pyvenv.cfg."""
    for folder in (site, *site.parents[:3]):
        if (folder / "pyvenv.cfg").is_file():
            return python_version((folder / "pyvenv.cfg").read_text(errors="replace"))
    return None


def python_version(settings: str) -> str | None:
    """Read the version from the text of a pyvenv.cfg, as `venv` or `virtualenv` write it."""
    found = re.search(r"^version(?:_info)?\s*=\s*(\d+\.\d+\.\d+)", settings, re.MULTILINE)
    return found and found[1]


def _unpacked_wheel(path: Path, site: Path) -> Installation:
    try:
        with zipfile.ZipFile(path) as wheel:
            members = _checked_members(wheel.infolist())
            for name, member in members.items():
                _write(site, name, _content(wheel, member))
    except (zipfile.BadZipFile, zlib.error, OSError, EOFError, ValueError, RuntimeError) as broken:
        if isinstance(broken, ConfigError):
            raise ConfigError(f"{path}: {broken}") from None
        raise ConfigError(f"{path} is no readable wheel: {broken}") from None
    version = _version_of_wheel(path, site)
    source = (("wheel", path.name), ("sha256", _sha256(path)), ("version", version))
    return Installation(site, source, None)


def _checked_members(infos: Sequence[zipfile.ZipInfo]) -> dict[str, zipfile.ZipInfo]:
    """Refuse a wheel that is not what pip would put into the one folder that is measured."""
    if len(infos) > MEMBERS:
        raise ConfigError(f"has {len(infos):,} members, more than {MEMBERS:,}")
    if sum(each.file_size for each in infos) > WHEEL_BYTES:
        raise ConfigError(f"unpacks to more than {WHEEL_BYTES >> 20} MiB")
    members: dict[str, zipfile.ZipInfo] = {}
    for each in infos:
        name = plain_name(each.filename.removesuffix("/"))
        if name in members:
            raise ConfigError(f"has {name} twice")
        if each.flag_bits & 1 or each.compress_type not in (
            zipfile.ZIP_STORED,
            zipfile.ZIP_DEFLATED,
        ):
            raise ConfigError(f"{name} is encrypted, or packed in a way that wheels are not")
        if stat.S_ISLNK(each.external_attr >> 16):
            raise ConfigError(f"{name} is a link")
        # A .data folder would be merged into others, and a .pth file runs code at every start.
        top, _, below = name.partition("/")
        if top not in _PACKAGES and not (top.startswith("ostraka-") and top.endswith(".dist-info")):
            raise ConfigError(f"installs {name}, which a wheel of Ostraka does not have")
        if not each.is_dir():
            if not below:
                raise ConfigError(f"{name} is a file where a folder belongs")
            members[name] = each
    return members


def plain_name(name: str) -> str:
    """Return a relative path that stays below its root, or raise ConfigError."""
    parts = name.split("/")
    if name.isprintable() and "\\" not in name and not {"", ".", ".."} & set(parts):
        return name
    raise ConfigError(f"has a member called {name[:200]!r}, which is no plain relative path")


def _content(wheel: zipfile.ZipFile, member: zipfile.ZipInfo) -> bytes:
    if member.file_size > MEMBER_BYTES:
        raise ConfigError(f"{member.filename} has more than {MEMBER_BYTES >> 20} MiB")
    with wheel.open(member) as file:
        return file.read(MEMBER_BYTES)


def _write(folder: Path, name: str, content: bytes) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("xb") as file:
        file.write(content)


def _version_of_wheel(path: Path, site: Path) -> str:
    infos = list(importlib.metadata.distributions(path=[str(site)]))
    names = [_normal(each.metadata["Name"] or "") for each in infos]
    if names != ["ostraka"]:
        raise ConfigError(f"{path} is no wheel of Ostraka: it holds {', '.join(names) or 'none'}")
    return infos[0].version


def _unpacked_image(path: Path, within: str | None, folder: Path) -> Installation:
    image = read_image(path)
    site = image.site(within)
    for name, content in image.below(site).items():
        _write(folder, plain_name(name), content)
    return Installation(
        folder,
        (("image", path.name), ("image id", f"sha256:{image.id}"), ("installed in", f"/{site}")),
        _python_of_image(site, image.files, image.environment),
    )


def _python_of_image(
    site: str, files: Mapping[str, bytes | None], environment: Mapping[str, str]
) -> str | None:
    """By the environment that it is installed in, or by what Python's own images declare."""
    settings = files.get("/".join((*site.split("/")[:-3], "pyvenv.cfg")))
    if settings is not None:
        return python_version(settings.decode(errors="replace"))
    return environment.get("PYTHON_VERSION")


def _begins_with(path: Path, magic: bytes) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(magic)) == magic
    except OSError as unreadable:
        raise ConfigError(f"{path}: {unreadable.strerror}") from None


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()

"""Reads the installation of Ostraka out of a container image's archive, without unpacking it.

An archive is what `podman save` or `docker save` writes, or a folder or tar file of OCI's image
layout. Every part is checked against the digest that names it: the manifest, the configuration,
and each layer's unpacked bytes. Layers are read as streams; only files of ours are kept.
"""

import gzip
import hashlib
import io
import json
import re
import tarfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from ostraka.errors import ConfigError

LAYERS, LAYER_MEMBERS = 512, 2_000_000
FILE_BYTES, KEPT_BYTES, LAYER_BYTES = 2**24, 2**28, 2**36
_JSON_BYTES = 2**22
_INDEX = ("application/vnd.oci.image.index.v1+json", "list.v2+json")
_SITE = r"(?P<site>(?:.*/)?(?:site|dist)-packages)/"
_PACKAGE = re.compile(_SITE + r"ostraka(?:/.*)?")
_METADATA = re.compile(_SITE + r"[^/]+\.dist-info(?:/METADATA)?")
# What the writers of images make: files, links, devices, folders, and what is said about the next.
_KINDS = tuple(bytes([each]) for each in b"0123456xLK")
_EXTENDING = (b"x", b"L", b"K")
_OCTAL, _BINARY = re.compile(rb" *[0-7]*[ \0]*"), 0x80
_WHITEOUT, _OPAQUE = ".wh.", ".wh..wh..opq"
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_BROKEN = (tarfile.TarError, OSError, EOFError, zlib.error, ValueError, KeyError, TypeError)

Blob = Callable[[str], IO[bytes]]


@dataclass(frozen=True)
class Image:
    """id: of its configuration, in hex. files: ours, by path; None is a link or a device."""

    id: str
    environment: Mapping[str, str]
    files: Mapping[str, bytes | None]

    def site(self, within: str | None) -> str:
        """The folder that holds the package `ostraka`: the only one, or the one that is named."""
        found = sorted({m["site"] for m in map(_PACKAGE.fullmatch, self.files) if m})
        chosen = [site for site in found if within is None or site == within.strip("/")]
        if len(chosen) == 1:
            return chosen[0]
        where = ", ".join(f"/{site}" for site in found) or "none"
        raise ConfigError(
            f"Ostraka has to be installed in one folder of the image, and --within names one of "
            f"several; found: {where}"
        )

    def below(self, site: str) -> dict[str, bytes]:
        """Our files and the libraries' metadata in this folder, by path from there."""
        found: dict[str, bytes] = {}
        for path, content in self.files.items():
            if path.startswith(f"{site}/"):
                if content is None:
                    raise ConfigError(f"/{path} is a link or no regular file; pip makes none")
                found[path.removeprefix(f"{site}/")] = content
        return found


def read_image(path: Path) -> Image:
    """Read an image's archive or layout. Raises ConfigError if it is damaged or none."""
    try:
        with _blobs(path) as blob:
            return _image(blob)
    except (ConfigError, RecursionError) as refused:
        raise ConfigError(f"{path}: {refused}") from None
    except _BROKEN as broken:
        raise ConfigError(f"{path} is no readable wheel and no readable image: {broken}") from None


@contextmanager
def _blobs(path: Path) -> Iterator[Blob]:
    """What opens a member by its name, in a folder or in an archive."""
    if path.is_dir():
        yield lambda name: _inside(path, name).open("rb")
        return
    with path.open("rb") as file:
        if file.read(2) == _GZIP:
            raise ConfigError("is compressed: unpack it by gunzip first")
        file.seek(0)
        with tarfile.open(fileobj=_Limited(file), mode="r:", tarinfo=_strict()) as archive:
            members: dict[str, tarfile.TarInfo] = {}
            for each in archive:
                _check_member(each)
                if len(members) > LAYER_MEMBERS:
                    raise ConfigError("has too many members")
                if members.setdefault(each.name.removeprefix("./"), each) is not each:
                    raise ConfigError(f"has {each.name} twice")
            yield lambda name: _member(archive, members, name)


def _inside(folder: Path, name: str) -> Path:
    path = (folder / name).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise ConfigError(f"names {name!r}, which is outside of it")
    return path


def _member(
    archive: tarfile.TarFile, members: Mapping[str, tarfile.TarInfo], name: str
) -> IO[bytes]:
    member = members.get(name)
    # `docker save` of old has links between layers that are the same.
    if member is not None and member.issym():
        base = name.rpartition("/")[0].split("/")
        steps = member.linkname.split("/")
        while steps and steps[0] == ".." and base:
            base, steps = base[:-1], steps[1:]
        member = members.get("/".join((*base, *steps)))
    if member is None or not member.isreg():
        raise ConfigError(f"has no {name}")
    file = archive.extractfile(member)
    if file is None:
        raise ConfigError(f"has no {name}")
    return file


def _image(blob: Blob) -> Image:
    is_layout = _has(blob, "oci-layout")
    config_id, config, names = _oci(blob) if is_layout else _saved(blob)
    if is_layout and _has(blob, "manifest.json") and _saved(blob)[0] != config_id:
        raise ConfigError("holds one image by its index.json, and another by its manifest.json")
    diffs = config["rootfs"]["diff_ids"]
    if not len(diffs) == len(names) <= LAYERS:
        raise ConfigError(f"has {len(names)} layers where {len(diffs)} are declared")
    state = _FileSystem()
    for name, diff in zip(names, diffs, strict=True):
        with blob(name) as file:
            _apply(file, str(diff), state)
    pairs = (str(each).partition("=") for each in config.get("config", {}).get("Env") or ())
    return Image(config_id, {name: value for name, _, value in pairs}, state.files)


def _has(blob: Blob, name: str) -> bool:
    try:
        blob(name).close()
    except (ConfigError, OSError):
        return False
    return True


def _saved(blob: Blob) -> tuple[str, dict[str, Any], list[str]]:
    """The id, the configuration and the layers of what `podman save` writes by itself."""
    _, manifest = _json(blob, "manifest.json")
    if len(manifest) != 1:
        raise ConfigError(f"holds {len(manifest)} images: save one")
    config_id, config = _json(blob, str(manifest[0]["Config"]))
    return config_id, config, [str(each) for each in manifest[0]["Layers"]]


def _oci(blob: Blob) -> tuple[str, dict[str, Any], list[str]]:
    """The same of OCI's layout, where an index may lead to another one."""
    _, index = _json(blob, "index.json")
    for _ in range(3):
        # What builders attach to an image says that it refers to one.
        images = [
            each
            for each in index["manifests"]
            if "vnd.docker.reference.type" not in (each.get("annotations") or {})
        ]
        if len(images) != 1:
            raise ConfigError(f"holds {len(images)} images: save one, of one platform")
        _, content = _json(blob, *_named(images[0]))
        if not str(images[0].get("mediaType", "")).endswith(_INDEX):
            config_id, config = _json(blob, *_named(content["config"]))
            return config_id, config, [_named(each)[0] for each in content["layers"]]
        index = content
    raise ConfigError("has an index of indices of indices")


def _named(descriptor: Mapping[str, Any]) -> tuple[str, str]:
    """Where the blob of this descriptor lies, and its SHA-256."""
    found = re.fullmatch(r"sha256:([0-9a-f]{64})", str(descriptor["digest"]))
    if not found:
        raise ConfigError(f"has a digest that is not read here: {descriptor['digest']!r}")
    return f"blobs/sha256/{found[1]}", found[1]


def _json(blob: Blob, name: str, sha256: str | None = None) -> tuple[str, Any]:
    with blob(name) as file:
        content = file.read(_JSON_BYTES + 1)
    digest = hashlib.sha256(content).hexdigest()
    if len(content) > _JSON_BYTES or digest != (sha256 or digest):
        raise ConfigError(f"{name} is damaged: it does not have the digest that names it")
    return digest, json.loads(content)


@dataclass
class _FileSystem:
    """What the layers so far have made: our files, and the paths that are no folders."""

    files: dict[str, bytes | None] = field(default_factory=dict)
    others: set[str] = field(default_factory=set)
    kept: int = 0

    def remove(self, gone: set[str], opaque: set[str]) -> None:
        """Take away what a layer hides: these paths, and all that is below opaque folders."""

        def stays(path: str) -> bool:
            above = _above(path)
            return path not in gone and gone.isdisjoint(above) and opaque.isdisjoint(above)

        if gone or opaque:
            self.files = {path: each for path, each in self.files.items() if stays(path)}
            self.others = {path for path in self.others if stays(path)}

    def require_room(self, path: str, size: int) -> None:
        self.kept += size
        if size > FILE_BYTES or self.kept > KEPT_BYTES:
            raise ConfigError(f"/{path} is too large: {size >> 20} MiB")


def _above(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:n]) for n in range(1, len(parts))]


def _apply(file: IO[bytes], diff: str, state: _FileSystem) -> None:
    """Put one layer on top of the others: first what it removes, then what it adds."""
    magic = file.read(4)
    file.seek(0)
    if magic == _ZSTD:
        raise ConfigError("has layers packed by zstd: save it with gzip, or without compression")
    stream = _Forward(gzip.GzipFile(fileobj=file) if magic.startswith(_GZIP) else file)
    gone: set[str] = set()
    opaque: set[str] = set()
    added: dict[str, bytes | None] = {}
    others: set[str] = set()
    with tarfile.open(fileobj=stream, mode="r:", tarinfo=_strict()) as layer:
        for count, member in enumerate(layer):
            _check_member(member)
            if count > LAYER_MEMBERS:
                raise ConfigError("has a layer with too many members")
            layer.members.clear()  # type: ignore[attr-defined]
            path = _path(member.name)
            folder, _, name = path.rpartition("/")
            if name == _OPAQUE:
                opaque.add(folder)
            elif name.startswith(_WHITEOUT):
                gone.add("/".join(filter(None, (folder, name.removeprefix(_WHITEOUT)))))
            elif member.isdir():
                gone |= {path} & state.others
                others.discard(path)
                added.pop(path, None)
            elif path:
                gone.add(path)
                _add(layer, member, path, state, added)
                others.add(path)
    if stream.digest() != diff:
        raise ConfigError(f"has a damaged layer: its digest is not {diff}")
    state.remove(gone, opaque)
    state.files |= added
    state.others |= others
    for path in state.files:
        if through := state.others.intersection(_above(path)):
            raise ConfigError(f"/{path} lies behind {min(through)!r}, which is no folder")


def _add(
    layer: tarfile.TarFile,
    member: tarfile.TarInfo,
    path: str,
    state: _FileSystem,
    added: dict[str, bytes | None],
) -> None:
    """Keep a file if it is of interest. Of one that comes twice, the last one counts."""
    added.pop(path, None)
    if not _is_kept(path):
        return
    if not member.isreg():
        added[path] = None
        return
    state.require_room(path, member.size)
    file = layer.extractfile(member)
    added[path] = None if file is None else file.read(FILE_BYTES)


def _is_kept(path: str) -> bool:
    if path.rpartition("/")[2] == "pyvenv.cfg" or _METADATA.fullmatch(path):
        return True
    return bool(_PACKAGE.fullmatch(path)) and "/__pycache__/" not in path


def _path(name: str) -> str:
    """A member's path from the root, without a slash. Runtimes take absolute ones as relative."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise ConfigError(f"has a member called {name[:200]!r}, which leaves its folder")
    return "/".join(parts)


def _strict() -> type[tarfile.TarInfo]:
    """Refuse headers that one reader takes for something else than another does, or for the end.

    Python ends silently at a header that it cannot read, and cuts numbers off at their first zero
    byte. What runs an image may read on, and find files behind it that were never measured.
    """
    extended = b""  # the kinds of what came before a member to say more about it

    class Strict(tarfile.TarInfo):
        @classmethod
        def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> "Strict":
            nonlocal extended
            try:
                info = super().frombuf(buf, encoding, errors)
            except tarfile.HeaderError as broken:
                if not any(buf):  # the end
                    raise
                raise tarfile.ReadError(f"a header is not readable: {broken}") from None
            kind, size = buf[156:157], buf[124:136]
            plain = _OCTAL.fullmatch(buf[148:156]) and (
                _OCTAL.fullmatch(size) or size[0] == _BINARY
            )
            if kind not in _KINDS or not _is_known(buf) or not plain or info.size < 0:
                raise ConfigError(
                    f"has a header of another kind than images have: {info.name[:200]!r}"
                )
            if kind in _EXTENDING and extended and (b"x" in (kind, extended) or kind in extended):
                raise ConfigError(f"says more than once what comes next: {info.name[:200]!r}")
            extended = extended + bytes(kind) if kind in _EXTENDING else b""
            return info

    return Strict


def _is_known(header: bytes | bytearray) -> bool:
    """Whether all readers find the parts of a header in the same places."""
    if header[257:263] == b"ustar\0":
        return header[508:512] != b"tar\0"
    return header[257:265] == b"ustar  \0" and not any(header[345:500])


def _check_member(member: tarfile.TarInfo) -> None:
    """The same of what was said about a member before it."""
    said = member.pax_headers
    unclear = any(not said.get(name, "-") for name in ("path", "linkpath", "size")) or any(
        name.startswith("GNU.") or name == "hdrcharset" for name in said
    )
    names = (member.name, said.get("path", member.name))
    if unclear or (not member.isdir() and any(not each or each[-1] == "/" for each in names)):
        raise ConfigError(f"has a member whose name or size is not clear: {member.name[:200]!r}")


class _Limited(io.BufferedIOBase):
    """A file in which nothing is read into memory at once that is larger than a file of ours.

    A header of a tar file may ask for gigabytes.
    """

    def __init__(self, file: IO[bytes] | io.BufferedIOBase) -> None:
        self._file = file

    def read(self, size: int | None = -1) -> bytes:
        if size is None or not 0 <= size <= FILE_BYTES:
            raise ConfigError("has a header that is too large")
        return self._file.read(size)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()


class _Forward(_Limited):
    """A stream that is read once, from its start to its end, within bounds, and hashed."""

    def __init__(self, file: IO[bytes] | io.BufferedIOBase) -> None:
        super().__init__(file)
        self._sha256 = hashlib.sha256()
        self._at = 0

    def read(self, size: int | None = -1) -> bytes:
        content = super().read(size)
        self._sha256.update(content)
        self._at += len(content)
        if self._at > LAYER_BYTES:
            raise ConfigError(f"has a layer of more than {LAYER_BYTES >> 30} GiB")
        return content

    def seek(self, offset: int, whence: int = 0) -> int:
        if whence or offset < self._at:
            raise ConfigError("has a layer that cannot be read in order")
        while self._at < offset and self.read(min(offset - self._at, 2**20)):
            pass
        return self._at

    def tell(self) -> int:
        return self._at

    def digest(self) -> str:
        while self.read(2**20):
            pass
        return f"sha256:{self._sha256.hexdigest()}"

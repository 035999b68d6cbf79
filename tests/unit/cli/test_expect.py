"""`ostraka attest expect`: what a release would measure, from files that are never run."""

import gzip
import hashlib
import io
import json
import os
import shlex
import shutil
import struct
import tarfile
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ostraka.attestation.simulation import SimulationPolicy
from ostraka.cli import app, images, releases
from ostraka.enclave import measurement
from ostraka.enclave.measurement import DEPENDENCIES, measure
from ostraka.files import read_policy

PACKAGE = Path(measurement.__file__).parents[1]
FILES = {
    f"ostraka/{path.relative_to(PACKAGE).as_posix()}": path.read_bytes()
    for path in sorted(PACKAGE.rglob("*"))
    if path.is_file() and "__pycache__" not in path.parts
}
INFO = "ostraka-0.2.0.dist-info"
OWN = {f"{INFO}/METADATA": b"Metadata-Version: 2.4\nName: ostraka\nVersion: 0.2.0\n"}
LIBRARIES = {
    f"{name.replace('-', '_')}-{version(name)}.dist-info/METADATA": (
        f"Metadata-Version: 2.1\nName: {name}\nVersion: {version(name)}\n".encode()
    )
    for name in DEPENDENCIES
}
PYTHON = dict(measure().dependencies)["python"]
VENV = "opt/ostraka"
SITE = f"{VENV}/lib/python3.11/site-packages"
INSTALLED = {
    f"{VENV}/pyvenv.cfg": f"home = /usr/bin\nversion = {PYTHON}\n".encode(),
    **{f"{SITE}/{name}": content for name, content in (FILES | OWN | LIBRARIES).items()},
}


def run(*arguments):
    return CliRunner().invoke(app, ["attest", "expect", *map(str, arguments)], prog_name="ostraka")


def figures(*arguments):
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.stderr
    (line,) = result.stdout.splitlines()
    return json.loads(line)


def refusal(*arguments):
    """What is said by a refusal, which leaves no trace of Python."""
    result = run(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    return result.stderr


# Wheels.


def wheel(path, files):
    """files: content by name, or pairs where a name may come twice or be a ZipInfo."""
    pairs = files.items() if isinstance(files, dict) else files
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in pairs:
            archive.writestr(name, content)
    return path


@pytest.fixture
def good(tmp_path):
    return wheel(tmp_path / "ostraka-0.2.0-py3-none-any.whl", FILES | OWN)


def test_a_wheel_measures_as_it_does_when_it_is_installed(good):
    told = figures(good)
    assert told["measurement"] == measure().digest.hex()
    assert told["code"] == measure().code.hex()
    assert told["dependencies"] == dict(measure().dependencies)
    assert told["lines"] == measure().lines
    assert (told["wheel"], told["version"]) == (good.name, "0.2.0")
    assert told["sha256"] == hashlib.sha256(good.read_bytes()).hexdigest()


def test_the_lines_are_those_of_a_policy(good, tmp_path):
    text = run(good).stdout
    lines = text[text.index("[simulation]") :]
    root = f'root = ["{"ab" * 32}"]'
    federation = f'id = "{"ab" * 32}"\nauthority = "{"cd" * 32}"\nworkers = []'
    (tmp_path / "policy.toml").write_text(
        'version = 1\nevidence = ["simulation"]\nunsafe_simulation = true\n'
        f"[federation]\n{federation}\n{lines}{root}\n"
    )
    policy = read_policy(tmp_path / "policy.toml")
    assert policy.of(SimulationPolicy).mrenclave == (measure().digest,)


def test_versions_of_libraries_and_python_can_be_said(good, tmp_path):
    pins = tmp_path / "pins.txt"
    pins.write_text(
        "# pins\n" + "".join(f"{n.replace('-', '_')}==9.{i}\n" for i, n in enumerate(DEPENDENCIES))
    )
    told = figures(good, "--constraints", pins, "--python", "3.13.1")
    versions = {"python": "3.13.1", **{name: f"9.{i}" for i, name in enumerate(DEPENDENCIES)}}
    assert told["dependencies"] == versions
    assert told["measurement"] == measure(versions=tuple(versions.items())).digest.hex()
    assert told["measurement"] != measure().digest.hex()
    assert told["code"] == measure().code.hex()


def test_nothing_of_a_wheel_is_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    touch = b"open('touched', 'w').close()\n"
    evil = {
        name: touch + content for name, content in FILES.items() if name.endswith("__init__.py")
    }
    told = figures(wheel(tmp_path / "evil.whl", FILES | OWN | evil))
    assert told["code"] != measure().code.hex()
    assert not (tmp_path / "touched").exists()


def test_a_release_is_measured_by_its_own_list(tmp_path):
    """A module more, as in a later release: it is measured, and what differs is told."""
    name = "ostraka/enclave/measurement.py"
    text = FILES[name].replace(
        b'    "ostraka.arrays",\n', b'    "ostraka.arrays",\n    "ostraka.new",\n'
    )
    later = FILES | OWN | {name: text, "ostraka/new.py": b"one = 1\n"}
    first = figures(wheel(tmp_path / "1.whl", later))
    second = figures(wheel(tmp_path / "2.whl", later | {"ostraka/new.py": b"one = 2\n"}))
    assert first["modules"] == len(measurement.MEASURED) + 1
    assert first["code"] != second["code"]
    assert "more: ostraka.new" in run(tmp_path / "1.whl").stdout


def test_a_list_with_less_in_it_is_told(tmp_path):
    name = "ostraka/enclave/measurement.py"
    text = FILES[name].replace(b'    "ostraka.arrays",\n', b"")
    assert (
        "fewer: ostraka.arrays" in run(wheel(tmp_path / "1.whl", FILES | OWN | {name: text})).stdout
    )


def changed(old, new):
    name = "ostraka/enclave/measurement.py"
    assert old in FILES[name]
    return FILES | OWN | {name: FILES[name].replace(old, new, 1)}


def link(name):
    info = zipfile.ZipInfo(name)
    info.external_attr = 0o120777 << 16
    return info


BAD_WHEELS = {
    "a member outside": ({**FILES, **OWN, "../evil.py": b""}, "'../evil.py', which is no plain"),
    "an absolute member": ({**FILES, **OWN, "/tmp/evil.py": b""}, "no plain relative path"),
    "a path with a dot": ({**FILES, **OWN, "ostraka/./core/field.py": b""}, "no plain"),
    "a path with two slashes": ({**FILES, **OWN, "ostraka//core/field.py": b""}, "no plain"),
    "a backslash": ({**FILES, **OWN, "ostraka\\core.py": b""}, "no plain relative path"),
    "a control character": ({**FILES, **OWN, "ostraka/a\nb.py": b""}, "no plain relative path"),
    "a .data folder that pip would merge": (
        {**FILES, **OWN, "ostraka-0.2.0.data/purelib/ostraka/core/field/__init__.py": b""},
        "which a wheel of Ostraka does not have",
    ),
    "code that runs at every start": (
        {**FILES, **OWN, "ostraka.pth": b"import os"},
        "installs ostraka.pth",
    ),
    "another package": ({**FILES, **OWN, "numpy/__init__.py": b""}, "installs numpy/__init__.py"),
    "a link": ([*(FILES | OWN).items(), (link("ostraka/core/more"), "/etc")], "is a link"),
    "a file for a folder": ([*OWN.items(), ("ostraka", b"")], "where a folder belongs"),
    "a file above a file": (
        {**FILES, **OWN, "ostraka/core/field.py/x.py": b""},
        "no readable wheel",
    ),
    "no metadata": (FILES, "no wheel of Ostraka: it holds none"),
    "another's metadata": (
        FILES | {f"{INFO}/METADATA": b"Name: other\nVersion: 1\n"},
        "no wheel of Ostraka: it holds other",
    ),
    "no code": (OWN | {"ostraka/__init__.py": b""}, "holds no ostraka/enclave/measurement.py"),
    "a measurement of another kind": (
        changed(b"measured-code/v2", b"measured-code/v9"),
        "measures in another way than the one that you run",
    ),
    "a measurement with other code": (
        changed(b"content.replace", b"content.strip().replace"),
        "measures in another way",
    ),
    "a list that is computed": (
        changed(b'LIBRARIES = ("core/loops/_native.so",)', b'LIBRARIES = tuple("a")'),
        "is not readable",
    ),
    "a list that leaves the package": (
        changed(b"core/loops/_native.so", b"../../../etc/shadow.so"),
        "which is no name",
    ),
    "a module that leaves the package": (
        changed(b'"ostraka.arrays"', b'"ostraka...arrays"'),
        "which is no name",
    ),
    "a list twice": (
        changed(b"_LOADED = (", b"DEPENDENCIES = ()\n_LOADED = ("),
        "has DEPENDENCIES twice",
    ),
    "no list": (changed(b"\nLIBRARIES = (", b"\nLIBRARY = ("), "has no list LIBRARIES"),
    "source that does not parse": (changed(b"import hashlib", b"import ("), "is not readable"),
    "source that is nested too deeply": (
        changed(b"import hashlib", b"x = " + b"-" * 200_000 + b"1"),
        "is not readable",
    ),
    "source that is far too long": (
        changed(b"import hashlib", b"#" * 2**21 + b"\nimport hashlib"),
        "too large",
    ),
}


@pytest.mark.parametrize(("files", "message"), BAD_WHEELS.values(), ids=BAD_WHEELS)
def test_a_wheel_that_is_not_ours_is_refused(tmp_path, files, message):
    assert message in refusal(wheel(tmp_path / "bad.whl", files))


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_member_that_comes_twice_is_refused(tmp_path):
    twice = [*(FILES | OWN).items(), ("ostraka/arrays.py", b"evil")]
    assert "has ostraka/arrays.py twice" in refusal(wheel(tmp_path / "twice.whl", twice))


def test_a_member_that_unpacks_to_too_much_is_refused(tmp_path):
    big = {**FILES, **OWN, "ostraka/big.py": bytes(releases.MEMBER_BYTES + 1)}
    path = wheel(tmp_path / "big.whl", big)
    assert path.stat().st_size < 2**22
    assert "ostraka/big.py has more than 16 MiB" in refusal(path)


def test_members_that_unpack_to_too_much_together_are_refused(tmp_path, monkeypatch):
    path = wheel(tmp_path / "all.whl", FILES | OWN)
    monkeypatch.setattr(releases, "WHEEL_BYTES", 2**20)
    assert "unpacks to more than 1 MiB" in refusal(path)
    monkeypatch.setattr(releases, "MEMBERS", 10)
    assert "members, more than 10" in refusal(path)


def test_a_size_that_is_a_lie_is_refused(tmp_path, good):
    """The directory says a byte, and the member has more."""
    content = bytearray(good.read_bytes())
    at = content.rindex(b"ostraka/arrays.py") - 46
    assert content[at : at + 4] == b"PK\x01\x02"
    struct.pack_into("<I", content, at + 24, 1)
    good.write_bytes(content)
    assert "no readable wheel" in refusal(good)


@pytest.mark.parametrize("cut", [3, 100, -30])
def test_a_wheel_that_is_cut_is_refused(good, cut):
    good.write_bytes(good.read_bytes()[:cut])
    assert "no readable" in refusal(good)


def test_a_flipped_bit_is_noticed(good):
    content = bytearray(good.read_bytes())
    content[len(content) // 2] ^= 1
    good.write_bytes(content)
    assert "no readable wheel" in refusal(good)


def test_an_encrypted_member_is_refused(good):
    content = bytearray(good.read_bytes())
    at = content.rindex(b"ostraka/arrays.py") - 46
    content[at + 8] |= 1
    good.write_bytes(content)
    assert "encrypted" in refusal(good)


# Installations.


def put(folder, files):
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def test_an_environment_measures_by_what_it_holds(tmp_path):
    environment = put(tmp_path, INSTALLED) / VENV
    expected = measure().digest.hex()
    assert figures(environment)["measurement"] == expected
    assert figures(tmp_path / SITE)["measurement"] == expected
    assert f"{PYTHON} (as it is installed)" in run(environment).stdout


def test_another_library_and_another_python_measure_otherwise(tmp_path):
    name = f"{SITE}/numpy-{version('numpy')}.dist-info/METADATA"
    changes = {
        name: b"Name: numpy\nVersion: 1.0\n",
        f"{VENV}/pyvenv.cfg": b"version_info = 3.14.2.final.0\n",
    }
    told = figures(put(tmp_path, INSTALLED | changes) / VENV)
    assert told["dependencies"]["numpy"] == "1.0"
    assert told["dependencies"]["python"] == "3.14.2"
    assert told["code"] == measure().code.hex()


def test_a_library_that_is_there_twice_is_refused(tmp_path):
    twice = {f"{SITE}/numpy-0.1.dist-info/METADATA": b"Name: numpy\nVersion: 0.1\n"}
    assert "which one is loaded?" in refusal(put(tmp_path, INSTALLED | twice) / VENV)


def test_what_python_would_load_in_place_of_our_code_is_seen(tmp_path):
    put(tmp_path, INSTALLED | {f"{SITE}/ostraka/core/field/__init__.py": b""})
    assert figures(tmp_path / VENV)["code"] != measure().code.hex()


# Images.


def layer(files, links=()):
    """A layer's tar: files, {name: content}, None for a folder; links, (name, target, kind)."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            if content is None:
                info.type = tarfile.DIRTYPE
            else:
                info.size = len(content)
            archive.addfile(info, io.BytesIO(content or b""))
        for name, target, kind in links:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, target
            archive.addfile(info)
    return out.getvalue()


def sha256(content):
    return hashlib.sha256(content).hexdigest()


def config_of(layers, **more):
    return {
        "config": {"Env": ["PATH=/bin", "PYTHON_VERSION=3.12.9"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{sha256(each)}" for each in layers]},
    } | more


def saved(layers, **more):
    """The members of what `podman save` writes."""
    config = json.dumps(config_of(layers, **more)).encode()
    names = [f"{sha256(each)}.tar" for each in layers]
    manifest = [{"Config": f"{sha256(config)}.json", "RepoTags": [], "Layers": names}]
    return {
        **dict(zip(names, layers, strict=True)),
        f"{sha256(config)}.json": config,
        "manifest.json": json.dumps(manifest).encode(),
    }


def oci(layers, pack=gzip.compress):
    """The members of OCI's layout."""
    blobs: dict[str, bytes] = {}

    def add(content, kind):
        content = content if isinstance(content, bytes) else json.dumps(content).encode()
        blobs[f"blobs/sha256/{sha256(content)}"] = content
        return {"mediaType": kind, "digest": f"sha256:{sha256(content)}", "size": len(content)}

    kind = "application/vnd.oci.image"
    manifest = {
        "config": add(config_of(layers), f"{kind}.config.v1+json"),
        "layers": [add(pack(each), f"{kind}.layer.v1.tar+gzip") for each in layers],
    }
    inner = {"manifests": [add(manifest, f"{kind}.manifest.v1+json")]}
    proof = {
        **add({}, f"{kind}.manifest.v1+json"),
        "annotations": {"vnd.docker.reference.type": "a"},
    }
    index = {"manifests": [add(inner, f"{kind}.index.v1+json"), proof]}
    return {"oci-layout": b"{}", "index.json": json.dumps(index).encode(), **blobs}


def archive(path, members):
    path.write_bytes(layer(members))
    return path


BASE = layer({"usr/bin/python3": b"\x7fELF", "etc/passwd": b"root"})
OURS = layer(INSTALLED)


def test_an_image_measures_as_what_is_installed_in_it(tmp_path):
    path = archive(tmp_path / "image.tar", saved([BASE, OURS]))
    told = figures(path)
    assert told["measurement"] == measure().digest.hex()
    assert told["installed_in"] == f"/{SITE}"
    assert told["image_id"] == f"sha256:{sha256(json.dumps(config_of([BASE, OURS])).encode())}"


@pytest.mark.parametrize("pack", [gzip.compress, bytes], ids=["gzip", "plain"])
@pytest.mark.parametrize("as_folder", [True, False], ids=["folder", "archive"])
def test_oci_s_layout_is_read(tmp_path, pack, as_folder):
    members = oci([BASE, OURS], pack)
    path = put(tmp_path / "i", members) if as_folder else archive(tmp_path / "i.tar", members)
    assert figures(path)["measurement"] == measure().digest.hex()


def test_python_s_own_images_say_its_version(tmp_path):
    without = layer({name: each for name, each in INSTALLED.items() if "pyvenv" not in name})
    told = figures(archive(tmp_path / "image.tar", saved([BASE, without])))
    assert told["dependencies"]["python"] == "3.12.9"


FIELD = f"{SITE}/ostraka/core/field.py"
CORE = f"{SITE}/ostraka/core"


def without(*prefixes):
    return {n: each for n, each in INSTALLED.items() if not n.startswith(prefixes)}


LAYERS = {
    "a file that is replaced": ([layer({FIELD: b"evil"})], INSTALLED | {FIELD: b"evil"}),
    "a file that is replaced twice": (
        [layer({FIELD: b"evil"}), layer({FIELD: INSTALLED[FIELD]})],
        INSTALLED,
    ),
    "a file that is removed": ([layer({f"{CORE}/.wh.field.py": b""})], without(FIELD)),
    "a file that is removed and comes again": (
        [layer({f"./{CORE}/.wh.field.py": b"", FIELD: b"new"})],
        INSTALLED | {FIELD: b"new"},
    ),
    "a folder that is removed": ([layer({f"{SITE}/ostraka/.wh.core": b""})], without(f"{CORE}/")),
    "a folder of which only what is new counts": (
        [layer({FIELD: b"new", f"{CORE}/.wh..wh..opq": b""})],
        {**without(f"{CORE}/"), FIELD: b"new"},
    ),
    "an impostor": (
        [layer({f"{CORE}/field/__init__.py": b""})],
        INSTALLED | {f"{CORE}/field/__init__.py": b""},
    ),
    "an absolute name": ([layer({f"/{FIELD}": b"evil"})], INSTALLED | {FIELD: b"evil"}),
    "what is cached": ([layer({f"{CORE}/__pycache__/field.cpython-311.pyc": b"x"})], INSTALLED),
    "a link that is removed again": (
        [layer({}, [(FIELD, "/evil", tarfile.SYMTYPE)]), layer({FIELD: INSTALLED[FIELD]})],
        INSTALLED,
    ),
}


@pytest.mark.parametrize(("upper", "result"), LAYERS.values(), ids=LAYERS)
def test_layers_lie_on_top_of_each_other(tmp_path, upper, result):
    path = archive(tmp_path / "image.tar", saved([BASE, OURS, *upper]))
    put(tmp_path / "root", result)
    expected = measure(tmp_path / "root" / SITE / "ostraka").code.hex()
    assert figures(path)["code"] == expected
    assert (expected == measure().code.hex()) == (result == INSTALLED)


TOO_MANY = layer({"usr/lib/python3/dist-packages/ostraka/__init__.py": b""})


def test_of_several_installations_one_must_be_chosen(tmp_path):
    path = archive(tmp_path / "image.tar", saved([OURS, TOO_MANY]))
    told = refusal(path)
    assert f"/{SITE}" in told
    assert "/usr/lib/python3/dist-packages" in told
    assert figures(path, "--within", f"/{SITE}/")["measurement"] == measure().digest.hex()
    assert "holds no ostraka/enclave" in refusal(path, "--within", "usr/lib/python3/dist-packages")


def long_header(size):
    """A tar file whose first header announces a name of this length."""
    info = tarfile.TarInfo("././@LongLink")
    info.type, info.size = tarfile.GNUTYPE_LONGNAME, size
    return info.tobuf(tarfile.GNU_FORMAT) + bytes(2**20)


def nested_headers():
    info = tarfile.TarInfo("././@LongLink")
    info.type, info.size = tarfile.GNUTYPE_LONGNAME, 2
    return (info.tobuf(tarfile.GNU_FORMAT) + b"a\0".ljust(512, b"\0")) * 5000


def spoilt(members, old, new):
    return {name: each.replace(old, new) for name, each in members.items()}


EVIL = layer({FIELD: b"print('not what was measured')"})


def checked(header, *, at_end=True):
    """A header with its checksum, which Python does not see if it comes behind a zero byte."""
    blank = header[:148] + b" " * 8 + header[156:]
    text = b"%06o\0 " % sum(blank) if at_end else b"\0%06o " % sum(blank)
    return blank[:148] + text + blank[156:]


def sized(size, kind=b"0"):
    """The header of a file whose size is written like this."""
    header = layer({"etc/a": b""})[:512]
    return checked(header[:124] + size + header[136:156] + kind + header[157:])


def members_of(tar):
    """A tar file without its end."""
    with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
        last = archive.getmembers()[-1]
    return tar[: last.offset_data + -(-last.size // 512) * 512]


def covering(rest):
    """The header of a file that holds all of the rest."""
    return sized(b"%011o\0" % len(rest))


def said(about, name, *, path=None, again=None):
    """A layer with one file, and what is said about it before. path: about all files."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", pax_headers={"path": path} if path else None) as tar:
        info = tarfile.TarInfo(name)
        info.pax_headers = about
        tar.addfile(info)
    if again is None:
        return out.getvalue()
    return said(again, name)[:1024] + out.getvalue()


BAD_IMAGES = {
    "no Ostraka": (saved([BASE]), "found: none"),
    "a link in the place of a file": (
        saved([OURS, layer({}, [(FIELD, "/etc/passwd", tarfile.SYMTYPE)])]),
        "is a link",
    ),
    "a hard link": (
        saved([OURS, layer({"evil": b"x"}, [(FIELD, "evil", tarfile.LNKTYPE)])]),
        "is a link",
    ),
    "a pipe": (
        saved([OURS, layer({}, [(FIELD, "", tarfile.FIFOTYPE)])]),
        "is a link or no regular",
    ),
    "a package that is a link": (
        saved([BASE, layer({}, [(f"{SITE}/ostraka", "/evil", tarfile.SYMTYPE)])]),
        "is a link",
    ),
    "an impostor that is a link to a folder": (
        saved([OURS, layer({}, [(f"{CORE}/field", "/evil", tarfile.SYMTYPE)])]),
        "is a link",
    ),
    "a file behind a link": (
        saved([layer({}, [("opt", "/srv", tarfile.SYMTYPE)]), OURS]),
        "lies behind 'opt', which is no folder",
    ),
    "a folder that becomes a link": (
        saved([OURS, layer({}, [("opt", "/srv", tarfile.SYMTYPE)])]),
        "found: none",
    ),
    "a member outside": (saved([OURS, layer({"../../evil": b""})]), "leaves its folder"),
    "a layer that was changed": (
        spoilt(saved([OURS]), b"import hashlib", b"import numpy  "),
        "damaged layer",
    ),
    "a blob that was changed": (spoilt(oci([OURS]), b'"rootfs"', b'"rootfz"'), "is damaged"),
    "a layer that is missing": (
        {k: v for k, v in saved([BASE, OURS]).items() if k != f"{sha256(OURS)}.tar"},
        f"has no {sha256(OURS)}.tar",
    ),
    "a layer that is not declared": (
        saved([OURS], rootfs={"diff_ids": []}),
        "has 1 layers where 0 are declared",
    ),
    "a layer that is no tar file": (saved([b"hello" * 1000]), "no readable image"),
    "a layer that ends early": (saved([OURS[: len(OURS) // 2]]), "no readable image"),
    "a layer of another compression": (saved([b"\x28\xb5\x2f\xfd" + bytes(99)]), "packed by zstd"),
    "a header for a name of gigabytes": (saved([long_header(2**33)]), "header that is too large"),
    "headers without end": (saved([nested_headers()]), "more than once what comes next"),
    "a header at which Python ends": (
        saved([OURS, checked(layer({"a": b""})[:512], at_end=False) + EVIL]),
        "a header is not readable",
    ),
    "a header that is cut": (
        saved([OURS, layer({"a": b""})[:512] + EVIL[:100]]),
        "is not readable",
    ),
    "a size that Python takes for 0": (
        saved([OURS, sized(b"\0" + b"%010o\0" % 512) + covering(EVIL) + EVIL]),
        "of another kind",
    ),
    "a size below 0": (saved([OURS, sized(b"\xff" * 11 + b"\0") + EVIL]), "of another kind"),
    "a file that may be a folder": (
        saved([OURS, sized(b"%011o\0" % len(EVIL), kind=b"\0") + EVIL]),
        "of another kind",
    ),
    "a header for all that come": (saved([OURS, said({}, FIELD, path="etc/a")]), "of another kind"),
    "an empty name in place of the file's": (
        saved([OURS, said({"path": ""}, FIELD)]),
        "not clear",
    ),
    "a name that only Python reads": (
        saved([OURS, said({"GNU.sparse.name": "etc/a"}, FIELD)]),
        "not clear",
    ),
    "a folder that is a file": (saved([OURS, said({"path": "etc/a/"}, FIELD)]), "not clear"),
    "a name that is said twice": (
        saved([OURS, said({"path": "etc/a"}, FIELD, again={"path": FIELD})]),
        "more than once what comes next",
    ),
    "one image by each of two manifests": (
        oci([OURS]) | saved([OURS, EVIL]),
        "another by its manifest.json",
    ),
    "two images": (
        {"manifest.json": b'[{"Config": "a"}, {"Config": "b"}]'},
        "holds 2 images: save one",
    ),
    "no manifest": ({"a": b"b"}, "has no manifest.json"),
    "a manifest that is no JSON": ({"manifest.json": b"{"}, "no readable image"),
    "a manifest of another shape": ({"manifest.json": b"[[]]"}, "no readable image"),
    "a name outside of the layout": (
        {
            "oci-layout": b"",
            "index.json": b'{"manifests": [{"digest": "sha256:../../etc/passwd"}]}',
        },
        "a digest that is not read here",
    ),
    "an index of itself": (
        {"oci-layout": b"", "index.json": b'{"manifests": []}'},
        "holds 0 images",
    ),
}


def test_an_archive_that_has_a_manifest_twice_is_refused(tmp_path):
    path = tmp_path / "image.tar"
    first, second = layer(saved([OURS])), layer(saved([OURS, EVIL]))
    path.write_bytes(members_of(first) + second)
    assert "twice" in refusal(path)


@pytest.mark.parametrize(("members", "message"), BAD_IMAGES.values(), ids=BAD_IMAGES)
def test_an_image_that_cannot_be_trusted_is_refused(tmp_path, members, message):
    path = archive(tmp_path / "image.tar", members)
    assert message in refusal(path)


def test_a_layer_that_unpacks_to_too_much_is_refused(tmp_path, monkeypatch):
    bomb = layer({**INSTALLED, "zeros": bytes(2**22)})
    path = archive(tmp_path / "image.tar", oci([bomb]))
    monkeypatch.setattr(images, "LAYER_BYTES", 2**22)
    assert "has a layer of more than" in refusal(path)


def test_a_file_of_ours_that_is_too_large_is_refused(tmp_path):
    big = layer({FIELD: bytes(images.FILE_BYTES + 1)})
    assert "is too large" in refusal(archive(tmp_path / "image.tar", oci([OURS, big])))


def test_a_name_outside_of_a_folder_is_refused(tmp_path):
    (tmp_path / "secret").write_bytes(b"[]")
    put(tmp_path / "image", {"oci-layout": b"", "index.json": b"{}"})
    with pytest.raises(ValueError, match="outside of it"):
        images._inside(tmp_path / "image", "../secret")


# Whatever else is given.

WRONG = {
    "nothing": ("nothing.whl", "nothing.whl: No such file"),
    "an empty file": ("empty", "no readable wheel and no readable image"),
    "text": ("text", "no readable wheel and no readable image"),
    "an archive that is packed": ("packed", "unpack it by gunzip first"),
    "an empty folder": (".", "holds 0 installations of Ostraka"),
    "half a version": ("good.whl --python 3.11", "a whole version such as 3.11.7"),
    "a folder in a wheel": ("good.whl --within a", "--within chooses a folder of an image"),
    "pins that do not pin": ("good.whl --constraints text", "has no line such as cbor2==1.0"),
    "no pins": ("good.whl --constraints nowhere", "nowhere"),
    "pins for what holds its libraries": ("image.tar --constraints text", "is for a wheel"),
}


@pytest.fixture(scope="module")
def others(tmp_path_factory):
    folder = tmp_path_factory.mktemp("others")
    wheel(folder / "good.whl", FILES | OWN)
    archive(folder / "image.tar", saved([OURS]))
    put(folder, {"empty": b"", "text": b"hello, world\n" * 99, "packed": gzip.compress(b"x")})
    return folder


@pytest.mark.parametrize(("line", "message"), WRONG.values(), ids=WRONG)
def test_what_cannot_be_read_is_said(others, monkeypatch, line, message):
    monkeypatch.chdir(others)
    assert message in refusal(*shlex.split(line))


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_that_may_not_be_read(others):
    shutil.copy(others / "good.whl", others / "closed.whl")
    (others / "closed.whl").chmod(0)
    assert "Permission denied" in refusal(others / "closed.whl")

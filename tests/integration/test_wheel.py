"""The packages: two builds are the same, and what they install works without the repository."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import dist
import pytest
import try_wheel

ROOT = Path(__file__).parents[2]


def test_builds_that_differ_are_refused(tmp_path):
    for name, content in (("one", b"1"), ("two", b"2")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.whl").write_bytes(content)
        (tmp_path / name / "b.tar.gz").write_bytes(b"same")
    first, second = dist.sums(tmp_path / "one"), dist.sums(tmp_path / "two")
    dist.require_equal(first, dict(first))
    with pytest.raises(dist.Different, match=r"two builds differ: a\.whl$"):
        dist.require_equal(first, second)
    with pytest.raises(dist.Different, match=r"b\.tar\.gz$"):
        dist.require_equal(first, {"a.whl": first["a.whl"]})


def test_sums_are_as_sha256sum_reads_them(tmp_path):
    (tmp_path / "a.whl").write_bytes(b"1")
    dist.write_sums(tmp_path)
    assert (tmp_path / "SHA256SUMS").read_text() == f"{hashlib.sha256(b'1').hexdigest()}  a.whl\n"
    subprocess.run(["sha256sum", "--check", "SHA256SUMS"], cwd=tmp_path, check=True)


@pytest.mark.soak
def test_a_wheel_works_where_nothing_else_is(tmp_path):
    """Its measurement is the one to expect, and a federation publishes a round."""
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "-w",
        str(tmp_path),
        str(ROOT),
    ]
    subprocess.run(build, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    place = try_wheel.Place(tmp_path / "place", wheel)
    place.federation()
    said = place.ostraka("--version")
    assert said.split()


@pytest.mark.soak
@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="only a clone can be built twice")
@pytest.mark.skipif(
    not (ROOT / ".venv-dist" / ".ready").exists(), reason="needs .venv-dist: run make dist once"
)
def test_two_builds_are_the_same(tmp_path):
    python = ROOT / ".venv-dist" / "bin" / "python"
    subprocess.run([python, ROOT / "tools" / "dist.py", "--out", tmp_path / "dist"], check=True)
    names = {path.name: path for path in (tmp_path / "dist").iterdir()}
    assert len(names) == 4
    (bill,) = [json.loads(p.read_text()) for p in names.values() if p.name.endswith(".cdx.json")]
    (wheel,) = [path for path in names.values() if path.suffix == ".whl"]
    about = bill["metadata"]["component"]
    assert about["hashes"] == [{"alg": "SHA-256", "content": dist.sha256(wheel)}]
    pinned = dict(
        line.split("==") for line in (ROOT / "constraints.txt").read_text().split() if "==" in line
    )
    listed = {
        each["name"].lower().replace("_", "-"): each["version"] for each in bill["components"]
    }
    assert {"numpy", "grpcio", "cryptography"} <= set(listed)
    assert listed.items() <= pinned.items()

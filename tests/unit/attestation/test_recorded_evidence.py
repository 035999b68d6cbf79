"""The recorded evidence is what its publishers published, byte for byte."""

import hashlib
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "vectors" / "evidence"
OURS = {"README.md", "SHA256SUMS"}


def test_every_recorded_file_has_the_sum_that_is_listed_for_it():
    """No file is altered, missing or unlisted."""
    lines = (FOLDER / "SHA256SUMS").read_text().splitlines()
    listed = {name: digest for digest, name in (line.split("  ", 1) for line in lines)}
    files = [path for path in FOLDER.rglob("*") if path.is_file()]
    found = {
        path.relative_to(FOLDER).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
    }
    assert {name: digest for name, digest in found.items() if name not in OURS} == listed

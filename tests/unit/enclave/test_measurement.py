"""The measurement: the same for the same code wherever it is, and another for any other code."""

import os
import platform
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import ostraka
from ostraka.enclave import measurement
from ostraka.enclave.measurement import MEASURED, measure, measured_files

PACKAGE = Path(ostraka.__file__).parent


@pytest.fixture
def copy(tmp_path):
    return Path(shutil.copytree(PACKAGE, tmp_path / "elsewhere" / "ostraka"))


def test_it_is_reproducible():
    assert measure() == measure()
    assert len(measure().code) == len(measure().digest) == 32


def test_it_does_not_depend_on_the_place(copy):
    assert measure(copy) == measure()


def test_it_does_not_depend_on_caches_and_other_files(copy):
    shutil.rmtree(copy / "core" / "__pycache__", ignore_errors=True)
    (copy / "core" / "notes.txt").write_text("hello")
    (copy / "core" / "__pycache__").mkdir()
    (copy / "core" / "__pycache__" / "rules.cpython-311.pyc").write_bytes(b"x")
    assert measure(copy) == measure()


def test_it_does_not_depend_on_line_ends(copy):
    for path in measured_files(copy):
        path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert measure(copy) == measure()


@pytest.mark.parametrize("name", MEASURED)
def test_one_changed_byte_in_any_measured_part_changes_it(copy, name):
    before = measure(copy)
    module = copy / f"{name}.py"
    path = module if module.is_file() else sorted((copy / name).rglob("*.py"))[-1]
    path.write_bytes(path.read_bytes() + b"#")
    assert measure(copy).code != before.code
    assert measure(copy).digest != before.digest


def test_a_new_a_renamed_and_a_missing_file_change_it(copy):
    seen = {measure(copy).digest}
    (copy / "core" / "zz_a.py").write_text("")
    seen.add(measure(copy).digest)
    (copy / "core" / "zz_a.py").rename(copy / "core" / "zz_b.py")
    seen.add(measure(copy).digest)
    (copy / "core" / "zz_b.py").unlink()
    (copy / "core" / "rules.py").unlink()
    seen.add(measure(copy).digest)
    assert len(seen) == 4


IMPOSTORS = ["core/rules.abi3.so", "core/rules.pyc", "errors/__init__.py", "errors.so"]


@pytest.mark.parametrize("name", IMPOSTORS)
def test_what_python_would_load_in_place_of_our_code_changes_it(copy, name):
    (copy / name).parent.mkdir(exist_ok=True)
    (copy / name).write_bytes(b"x")
    assert measure(copy).code != measure().code


@pytest.mark.parametrize("name", ["cli", "bench", "lab", "backends"])
def test_what_the_enclave_does_not_load_does_not_count(copy, name):
    module = copy / f"{name}.py"
    path = module if module.is_file() else copy / name / "__init__.py"
    path.write_text("changed = True")
    assert measure(copy) == measure()


def test_moving_text_from_one_file_to_the_next_changes_it(copy):
    before = measure(copy)
    first, second = measured_files(copy)[1:3]
    text = first.read_bytes()
    first.write_bytes(text[:-10])
    second.write_bytes(text[-10:] + second.read_bytes())
    assert measure(copy).code != before.code


def test_versions_are_part_of_it(monkeypatch):
    before = measure()
    assert before.dependencies[0] == ("python", platform.python_version())
    assert ("numpy", version("numpy")) in before.dependencies
    monkeypatch.setattr(measurement, "_version", lambda name: "0")
    assert measure().code == before.code
    assert measure().digest != before.digest


def test_a_library_that_is_missing_is_said_to_be(monkeypatch):
    monkeypatch.setattr(measurement, "DEPENDENCIES", ("no-such-distribution",))
    assert measure().dependencies[1] == ("no-such-distribution", "not installed")


def test_every_measured_name_exists():
    for name in MEASURED:
        assert (PACKAGE / f"{name}.py").is_file() or (PACKAGE / name).is_dir(), name


PROBE = """
import sys
import ostraka.enclave.measurement, ostraka.enclave.storage, ostraka.enclave.platform
import ostraka.federation_file, ostraka.attestation.verify, ostraka.protocol.enclave
parts = {name.split(".")[1] for name in sys.modules if name.startswith("ostraka.")}
print(" ".join(sorted(parts)))
"""


def test_what_services_load_of_ostraka_is_measured():
    done = subprocess.run(
        [sys.executable, "-c", PROBE],
        env={**os.environ, "PYTHONPATH": str(PACKAGE.parent)},
        capture_output=True,
        check=True,
        text=True,
    )
    assert set(done.stdout.split()) <= set(MEASURED)

"""The build of the loops: its bytes, its warnings, and what sanitizers say of what it made."""

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from ostraka.core.loops import native

TOOL = Path(__file__).parents[4] / "tools" / "build_native.py"
if not TOOL.is_file():
    pytest.skip("only the source tree has tools/", allow_module_level=True)
TOOLS = runpy.run_path(str(TOOL))
COMPILER = TOOLS["compiler"]()
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="there is no C compiler here")


@needs_compiler
@pytest.mark.slow
def test_the_same_compiler_makes_the_same_bytes_without_a_warning(tmp_path):
    built = [tmp_path / "here" / "one.so", tmp_path / "elsewhere" / "two.so"]
    for path in built:
        path.parent.mkdir()
        TOOLS["build"](path, ["-Werror"])
    assert built[0].read_bytes() == built[1].read_bytes()
    assert str(tmp_path).encode() not in built[0].read_bytes()
    assert native.load(built[0]) is not None
    assert [path.name for path in (tmp_path / "here").iterdir()] == ["one.so"]


@needs_compiler
def test_a_failed_build_leaves_nothing(tmp_path):
    with pytest.raises(subprocess.CalledProcessError):
        TOOLS["build"](tmp_path / "_native.so", ["-no-such-flag"])
    assert list(tmp_path.iterdir()) == []


def test_no_compiler_is_said(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(OSError, match="no C compiler"):
        TOOLS["build"](tmp_path / "_native.so")


def fuzz(library, **environment):
    """Runs the tests of the next file against this library."""
    tests = Path(__file__).with_name("test_loops.py")
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider"]
    return subprocess.run(
        [*command, "-k", "same_in_c", str(tests)],
        env=os.environ | {"OSTRAKA_TEST_LOOPS": str(library)} | environment,
        capture_output=True,
        check=False,
        text=True,
    )


@needs_compiler
@pytest.mark.soak
def test_sanitizers_find_nothing(tmp_path):
    asked = [*COMPILER, "-print-file-name=libasan.so"]
    runtime = subprocess.run(asked, capture_output=True, check=True, text=True).stdout.strip()
    if not Path(runtime).is_file():
        pytest.skip("this compiler has no libasan.so")
    library = tmp_path / "_native.so"
    checks = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-O1"]
    TOOLS["build"](library, checks)
    done = fuzz(library, LD_PRELOAD=runtime, ASAN_OPTIONS="detect_leaks=0")
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
    assert "without a compiler" not in done.stdout, "the library was not loaded"

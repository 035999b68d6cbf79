import sys
import time
from pathlib import Path

import pytest

from ostraka.enclave.platform.key_release import ask
from ostraka.errors import PlatformError


def python(code):
    return (sys.executable, "-S", "-c", code)


def asked(code, request=b"question\n", *, seconds=60.0, largest=100):
    return ask(python(code), request, seconds=seconds, largest=largest)


ECHO = "import sys; sys.stdout.write(sys.stdin.read().upper())"


def test_a_question_and_its_answer():
    assert asked(ECHO) == b"QUESTION\n"


def test_a_command_need_not_read():
    assert asked("print('answer')", bytes(1 << 20)) == b"answer\n"


def test_a_long_question_arrives_whole():
    code = "import sys; print(len(sys.stdin.buffer.read()))"
    assert asked(code, bytes(1 << 20)) == b"1048576\n"


def test_an_answer_in_pieces():
    code = "import sys, time\nfor c in 'answer': print(c, end='', flush=True); time.sleep(0.01)"
    assert asked(code) == b"answer"


def test_the_longest_answer_and_one_byte_more():
    assert asked("print('x' * 100, end='')") == b"x" * 100
    with pytest.raises(PlatformError, match="longer than 100 bytes"):
        asked("print('x' * 101, end='')")


def test_an_endless_answer_ends():
    with pytest.raises(PlatformError, match="longer than 100 bytes"):
        asked("while True: print('x' * 1000)")


def test_a_failure_is_an_error_whatever_was_answered():
    with pytest.raises(PlatformError, match="exit code 3"):
        asked("import sys; print('answer'); sys.exit(3)")


def test_an_absent_command():
    with pytest.raises(PlatformError, match="cannot run '/nowhere': No such file"):
        ask(("/nowhere",), b"", seconds=1, largest=1)


def test_no_shell_reads_the_command():
    with pytest.raises(PlatformError, match="cannot run"):
        ask(("echo answer; true",), b"", seconds=1, largest=1)


SILENT = {
    "says nothing": "import time; time.sleep(600)",
    "says something and stays": "import time; print('answer', flush=True); time.sleep(600)",
    "closes its output and stays": "import os, time; os.close(1); time.sleep(600)",
}


@pytest.mark.parametrize("what", SILENT)
def test_a_command_that_does_not_end_is_ended(what):
    with pytest.raises(PlatformError, match=r"did not end within 0\.3 s"):
        asked(SILENT[what], seconds=0.3)


def test_what_the_command_started_ends_with_it(tmp_path):
    code = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-S', '-c', 'import time; time.sleep(600)'])\n"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(child.pid))\n"
        "print('x' * 1000, flush=True)\n"
        "time.sleep(600)\n"
    )
    with pytest.raises(PlatformError, match="longer than"):
        asked(code)
    pid = int((tmp_path / "pid").read_text())
    patience = 3000
    while alive(pid) and patience:
        time.sleep(0.01)
        patience -= 1
    assert patience


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


def test_no_descriptor_is_left_open():
    before = descriptors()
    asked(ECHO)
    for code in ("print('x' * 1000)", "import sys; sys.exit(1)"):
        with pytest.raises(PlatformError):
            asked(code)
    assert descriptors() == before

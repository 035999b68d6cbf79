"""Break the code in one place, and see whether a test notices: `make mutants`.

cosmic-ray makes the mutants of core, crypto, protocol and attestation; a seed samples them. Each
lives in a copy of the tree, `.mutants/tree`, and meets the tests that run its line, the cheapest
first, until one fails. `tests/mutants.toml` lists the mutants that no test can tell from the code,
with the reason. A survivor that is not listed there is an error.

What is known is kept in `.mutants`, so a run that was ended goes on where it was. A killed mutant
stays killed until its module changes; survivors meet the tests again when a test has changed.
"""

import argparse
import ast
import contextlib
import fnmatch
import functools
import hashlib
import itertools
import json
import math
import os
import re
import resource
import shutil
import signal
import sys
import time
import tomllib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

# Read when numpy and pytest are loaded: a process that forks has one thread, and the plugins that
# the tests use are none that pytest finds by itself.
os.environ |= dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"

import cryptography.x509  # noqa: F401  (loaded once, and not by each process)
import numpy as np  # noqa: F401
import pytest
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code, use_mutation
from cosmic_ray.plugins import get_operator, operator_names
from cosmic_ray.work_db import WorkDB, use_db
from cosmic_ray.work_item import MutationSpec, TestOutcome, WorkerOutcome, WorkItem, WorkResult
from coverage import Coverage, CoverageData
from hypothesis import Phase, is_hypothesis_test, settings

ROOT = Path(__file__).parents[1]
LISTED = ROOT / "tests" / "mutants.toml"
HOME = ROOT / ".mutants"
TREE, PLAN, RESULTS = HOME / "tree", HOME / "plan.json", HOME / "results.sqlite"
SAID = HOME / "said.txt"
LINES, COSTS, MEASURED = HOME / "lines.sqlite", HOME / "costs.json", HOME / "measured.json"

MUTATED = ("core", "crypto", "protocol", "attestation")
TESTS = (*(f"tests/unit/{part}" for part in (*MUTATED, "test_config.py")), "tests/protocol")
COPIED = ("src", "tests", "tools", "docs")  # Some tests read documents and run tools.
# These start other programs, and take longer than all that a mutant is worth.
IGNORED = ("tests/unit/core/loops/test_build.py", "tests/unit/core/rules/test_byzfl.py")
_OPTIONS = (
    *("-x", "-q", "--tb=line", "-p", "no:cacheprovider"),
    *(f"--ignore={file}" for file in IGNORED),
)

# A mutant meets tests of this cost at most, in seconds of processor time; a loop without end costs
# a few times as much. The clock on the wall is for what sleeps, and allows for a busy machine.
BUDGET_S, LOOP_FACTOR, LOOP_S, ASLEEP_S = 60.0, 4, 20, 1200
MEMORY_BYTES = 6 << 30
# So many tests at first: most mutants fall to one of them.
FIRST_TESTS = 40

# Arithmetic becomes other arithmetic, and bits other bits: a mix of both fails by its types.
_KINDS = ("(Add|Sub|Mul|Div|FloorDiv|Mod|Pow)", "(RShift|LShift|BitOr|BitAnd|BitXor)")
# `is` is compared with None and with types, where == is the same and an order is no question.
_ORDER = "(Eq|NotEq|Lt|LtE|Gt|GtE)"
_OPERATORS = re.compile(
    "core/("
    + "|".join(f"ReplaceBinaryOperator_{kind}_{kind}" for kind in _KINDS)
    + f"|ReplaceComparisonOperator_({_ORDER}_{_ORDER}|Is_IsNot|IsNot_Is)"
    + "|ReplaceUnaryOperator_.*|ReplaceTrueWithFalse|ReplaceFalseWithTrue|ReplaceAndWithOr"
    + "|ReplaceOrWithAnd|ReplaceBreakWithContinue|ReplaceContinueWithBreak|AddNot"
    + "|ExceptionReplacer|NumberReplacer|ZeroIterationForLoop)"
)


@dataclass(frozen=True)
class Mutant:
    """A mutant of the sample; `job` names it in cosmic-ray's results."""

    job: str
    module: str  # from src/ostraka
    line: int
    was: str
    becomes: str

    def __str__(self) -> str:
        return f"{self.module}:{self.line}\n  - {self.was}\n  + {self.becomes}"


def main() -> None:
    """Run what is left of the sample, and report."""
    asked = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    asked.add_argument("--count", type=int, default=500, help="size of the sample")
    asked.add_argument("--seed", type=int, default=18, help="which sample")
    asked.add_argument("--module", default="*", help="run those of these modules: 'core/rules/*'")
    asked.add_argument("--again", action="store_true", help="run the survivors again")
    asked.add_argument("--report", action="store_true", help="run nothing: say what is known")
    given = asked.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("mutants: ended; start again to go on"))
    HOME.mkdir(exist_ok=True)
    with use_db(str(RESULTS)) as known:
        sample = _sample(known, given.count, given.seed)
        if not given.report:
            _copy_tree()
            if _measure() or given.again:
                _forget_survivors(known, sample)
            _run(known, sample, given.module)
        sys.exit(_report(known, sample))


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _copy_tree() -> None:
    """Make the copy anew: a run that was ended may have left a mutant in the old one."""
    shutil.rmtree(TREE, ignore_errors=True)
    skipped = shutil.ignore_patterns("__pycache__")
    for name in COPIED:
        shutil.copytree(ROOT / name, TREE / name, ignore=skipped)
    shutil.copy2(ROOT / "pyproject.toml", TREE)


# Which test runs which line, and at what cost.


def _measure() -> bool:
    """Measure the tests whose files changed, or all if anything else did; returns if any did.

    Raises `SystemExit` if a test fails: it would kill every mutant.
    """
    now = {str(path.relative_to(TREE)): _digest(path) for path in _measured_files()}
    before = json.loads(MEASURED.read_text()) if MEASURED.is_file() else {}
    changed = {name for name in now.keys() | before.keys() if now.get(name) != before.get(name)}
    if not changed:
        return False
    again = sorted(changed & now.keys())
    whole = not all(_is_test(name) for name in changed)
    costs = {} if whole else _without(json.loads(COSTS.read_text()), changed)
    if whole:
        MEASURED.unlink(missing_ok=True)
        LINES.unlink(missing_ok=True)
    if whole or again:
        _say("measuring which tests run which lines")
        costs |= _measured_costs(TESTS if whole else again)
    COSTS.write_text(json.dumps(costs, indent=0))
    MEASURED.write_text(json.dumps(now, indent=0))
    return True


def _measured_files() -> Iterator[Path]:
    yield from (TREE / "src" / "ostraka").rglob("*.py")
    yield TREE / "tests" / "conftest.py"
    for part in TESTS:
        yield from [TREE / part] if part.endswith(".py") else (TREE / part).rglob("*.py")


def _is_test(name: str) -> bool:
    return fnmatch.fnmatch(name, "tests/*/test_*.py")


def _without(costs: Mapping[str, float], files: Iterable[str]) -> dict[str, float]:
    gone = set(files)
    return {test: cost for test, cost in costs.items() if _file_of(test) not in gone}


def _measured_costs(tests: Sequence[str]) -> dict[str, float]:
    written = HOME / "costs-new.json"

    def measured() -> int:
        included = [f"{TREE}/src/ostraka/{package}/*" for package in MUTATED]
        coverage = Coverage(data_file=str(LINES), include=included, config_file=False)
        coverage.load()
        measurement = Measurement(coverage)
        coverage.start()
        code = pytest.main([*_OPTIONS, *tests], [measurement])
        coverage.stop()
        coverage.save()
        written.write_text(json.dumps(measurement.costs, indent=0))
        return code

    if _in_child(measured) != 0:
        sys.exit(f"mutants: the tests fail without a mutant: see {SAID}")
    costs: dict[str, float] = json.loads(written.read_text())
    return costs


class Measurement:
    """A plugin of pytest: notes the lines that each test runs under its name, and what it costs.

    A few examples run the lines that all of them run; the cost is scaled up.
    """

    _examples = 5

    def __init__(self, coverage: Coverage) -> None:
        self.costs: dict[str, float] = {}
        self._coverage = coverage
        self._scale = 1.0

    def pytest_sessionstart(self) -> None:
        """Ask for few examples; the profile that is loaded now is the one of conftest.py."""
        self._scale = settings().max_examples / self._examples
        settings.register_profile("measured", settings(), max_examples=self._examples)
        settings.load_profile("measured")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Measure one test, in processor time with that of the processes that it starts."""
        self._coverage.switch_context(item.nodeid)
        before = sum(os.times()[:4])
        result = yield
        cost = sum(os.times()[:4]) - before
        drawn = is_hypothesis_test(getattr(item, "obj", None))
        self.costs[item.nodeid] = round(cost * (self._scale if drawn else 1), 3)
        return result


# Processes: each starts as a copy of this one, in which pytest and numpy are loaded already.


def _in_child(work: Callable[[], int], patience_s: float = math.inf) -> int:
    """Run `work` in the copy of the tree, in a process of its own; returns its exit code."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setsid()
            _enter_tree()
            code = work()
        finally:
            sys.stdout.flush()
            os._exit(code)
    try:
        return _waited(child, time.monotonic() + patience_s)
    finally:
        # Ends it, if this process is being ended, and what its tests have left behind.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)


def _waited(child: int, until: float) -> int:
    while (ended := os.waitpid(child, os.WNOHANG))[0] == 0:
        if time.monotonic() > until:
            return 1
        time.sleep(0.02)
    return os.waitstatus_to_exitcode(ended[1])


def _enter_tree() -> None:
    """Let this process, and those that it starts, import from the copy and write beside it."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.chdir(TREE)
    said = os.open(SAID, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(said, 1)
    os.dup2(said, 2)
    source = str(TREE / "src")
    sys.path.insert(0, source)
    os.environ["PYTHONPATH"] = source
    sys.dont_write_bytecode = False
    sys.pycache_prefix = os.environ["PYTHONPYCACHEPREFIX"] = str(HOME / "pycache")


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


# The sample.


def _sample(known: WorkDB, count: int, seed: int) -> list[Mutant]:
    """Returns the sample, in the order in which it is run; it is planned when the code changed."""
    paths = [
        path
        for package in MUTATED
        for path in sorted((ROOT / "src" / "ostraka" / package).rglob("*.py"))
    ]
    code = hashlib.sha256("".join(map(_digest, paths)).encode()).hexdigest()
    key = [code, count, seed, _digest(Path(__file__))]
    planned: dict[str, Any] = json.loads(PLAN.read_text()) if PLAN.is_file() else {"key": None}
    if planned["key"] != key:
        _say("planning the sample")
        mutants = [asdict(mutant) for mutant in _planned(known, paths, count, seed)]
        planned = {"key": key, "mutants": mutants}
        PLAN.write_text(json.dumps(planned, indent=1))
    return [Mutant(**fields) for fields in planned["mutants"]]


def _planned(known: WorkDB, paths: Sequence[Path], count: int, seed: int) -> Iterator[Mutant]:
    """Draw the sample, and enter it into the results, where it waits for its own."""
    eligible = [spec for path in paths for spec in _eligible(path)]
    _say(f"{len(eligible)} mutants")
    entered = {item.job_id for item in known.work_items}
    drawn = ((spec, _mutant(spec)) for spec in _drawn(eligible, seed))
    python = ((spec, mutant) for spec, mutant in drawn if mutant is not None)
    for spec, mutant in itertools.islice(python, count):
        if mutant.job not in entered:
            inside = TREE / spec.module_path.relative_to(ROOT)
            known.add_work_item(WorkItem.single(mutant.job, _moved(spec, inside)))
        yield mutant


def _moved(spec: MutationSpec, path: Path) -> MutationSpec:
    return MutationSpec(path, spec.operator_name, spec.occurrence, spec.start_pos, spec.end_pos)


def _eligible(path: Path) -> Iterator[MutationSpec]:
    """Yield the mutants that a test could be asked to kill, by operator and by place."""
    nodes = list(ast_nodes(get_ast(_source(path))))
    for name in filter(_OPERATORS.fullmatch, operator_names()):
        operator = get_operator(name)()
        places = [place for node in nodes for place in operator.mutation_positions(node)]
        for occurrence, (start, end) in enumerate(places):
            if not any(first <= start < last for first, last in _forms(path)):
                yield MutationSpec(path, name, occurrence, start, end)


def _drawn(specs: Sequence[MutationSpec], seed: int) -> list[MutationSpec]:
    """Order mutants by a hash of their text: a change elsewhere leaves the sample as it is."""
    seen: Counter[str] = Counter()
    order = []
    for spec in specs:
        text = _source(spec.module_path).splitlines()[spec.start_pos[0] - 1]
        place = f"{spec.module_path.relative_to(ROOT)} {text} {spec.start_pos[1]}"
        name = f"{seed} {place} {spec.operator_name}"
        seen[name] += 1
        order.append((hashlib.sha256(f"{name} {seen[name]}".encode()).digest(), spec))
    return [spec for _, spec in sorted(order, key=lambda pair: pair[0])]


def _mutant(spec: MutationSpec) -> Mutant | None:
    """Apply a mutation to the text; returns None for one that is no Python."""
    source = _source(spec.module_path)
    mutated = mutate_code(source, get_operator(spec.operator_name)(), spec.occurrence)
    try:
        compile(mutated, str(spec.module_path), "exec", dont_inherit=True)
    except SyntaxError:
        return None
    before, after = source.splitlines(), mutated.splitlines()
    line = next(i for i, (one, two) in enumerate(zip(before, after, strict=True)) if one != two)
    module = str(spec.module_path.relative_to(ROOT / "src" / "ostraka"))
    named = f"{_digest(spec.module_path)} {module} {spec.operator_name} {spec.occurrence}"
    job = hashlib.sha256(named.encode()).hexdigest()[:16]
    return Mutant(job, module, line + 1, before[line].strip(), after[line].strip())


@functools.cache
def _source(path: Path) -> str:
    return path.read_text()


# What is form and not behaviour: text for people, types, options of classes, defaults.

Span = tuple[tuple[int, int], tuple[int, int]]


@functools.cache
def _forms(path: Path) -> tuple[Span, ...]:
    nodes = ast.walk(ast.parse(_source(path)))
    return tuple(form for node in nodes for form in _forms_of(node))


def _span(node: ast.expr | ast.stmt) -> Span:
    end = (node.end_lineno or node.lineno, node.end_col_offset or 0)
    return (node.lineno, node.col_offset), end


def _forms_of(node: ast.AST) -> Iterator[Span]:
    match node:
        case ast.JoinedStr() | ast.If(test=ast.Name("TYPE_CHECKING")):
            yield _span(node)
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            yield from map(_span, node.decorator_list)
            whole = node.name in ("__repr__", "__str__")
            yield (_span(node)[0], _span(node)[1] if whole else _span(node.body[0])[0])
        case ast.ClassDef():
            yield from map(_span, node.decorator_list)
            fields = [part.value for part in node.body if isinstance(part, ast.AnnAssign)]
            calls = (value for value in fields if isinstance(value, ast.Call))
            said = (each.value for call in calls for each in call.keywords if each.arg == "default")
            yield from (_span(each) for each in (*fields, *said) if isinstance(each, ast.Constant))
        case ast.AnnAssign():
            yield _span(node.annotation)
        case ast.Assign(value=ast.BinOp(op=ast.BitOr()) as union) if _is_type(union):
            yield _span(union)
        case _:
            pass


def _is_type(node: ast.expr) -> bool:
    """Tell a union of types from bits: the names of types begin with a capital or are built in."""
    names = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
    return all(name[0].isupper() or name in ("int", "str", "bytes", "float") for name in names)


# A mutant and its tests.


def _run(known: WorkDB, sample: Sequence[Mutant], chosen: str) -> None:
    """Run the mutants of the chosen modules that have no result."""
    specs = {item.job_id: item.mutations[0] for item in known.work_items}
    done = _outcomes(known)
    waiting = [m for m in sample if m.job not in done and fnmatch.fnmatch(m.module, chosen)]
    costs = json.loads(COSTS.read_text())
    for number, mutant in enumerate(waiting, 1):
        started = time.monotonic()
        result = _result(mutant, specs[mutant.job], costs)
        known.set_result(mutant.job, result)
        said = "killed" if result.is_killed else f"SURVIVED: {mutant}"
        _say(f"{number}/{len(waiting)}, {time.monotonic() - started:.1f} s: {said}")


def _forget_survivors(known: WorkDB, sample: Sequence[Mutant]) -> None:
    """Let those that are not listed meet the tests again, as if they had not been run."""
    alive = {job for job, killed in _outcomes(known).items() if not killed}
    again = [mutant.job for mutant in sample if mutant.job in alive and not _is_listed(mutant)]
    known.set_multiple_results(again, WorkResult(WorkerOutcome.SKIPPED))


def _outcomes(known: WorkDB) -> dict[str, bool]:
    """Returns which of the mutants that were run are killed."""
    run = ((job, result) for job, result in known.results if result.test_outcome is not None)
    return {job: result.test_outcome is TestOutcome.KILLED for job, result in run}


def _result(mutant: Mutant, spec: MutationSpec, costs: Mapping[str, float]) -> WorkResult:
    """Apply a mutation in the copy, and run tests until one fails."""
    with _mutated(spec, int(mutant.job[:8], 16)):
        for tests in _tests_of(mutant, costs):
            if tests and _in_child(functools.partial(_tried, tests, costs), ASLEEP_S) != 0:
                said = SAID.read_text(errors="replace")[-1000:]
                return WorkResult(WorkerOutcome.NORMAL, said, TestOutcome.KILLED)
    return WorkResult(WorkerOutcome.NORMAL, test_outcome=TestOutcome.SURVIVED)


@contextlib.contextmanager
def _mutated(spec: MutationSpec, moment: int) -> Iterator[None]:
    """Apply a mutation for a while; Python knows a compiled file by the moment of its change."""
    before = spec.module_path.stat().st_mtime
    with use_mutation(spec.module_path, get_operator(spec.operator_name)(), spec.occurrence):
        os.utime(spec.module_path, (moment, moment))
        yield
    os.utime(spec.module_path, (before, before))


def _tried(tests: Sequence[str], costs: Mapping[str, float]) -> int:
    """Run these tests in this order until one fails; returns the exit code.

    What loops or hoards ends by a limit on processor time or memory, however busy the machine.
    """
    limit = int(LOOP_S + LOOP_FACTOR * sum(costs[test] for test in tests))
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    files = sorted({_file_of(test) for test in tests})
    code = pytest.main([*_OPTIONS, *files], [Selection(tests)])
    return 0 if code == pytest.ExitCode.NO_TESTS_COLLECTED else code


class Selection:
    """A plugin of pytest: runs the tests of a list in its order; a mutant may have renamed some.

    A test that fails has killed its mutant, so Hypothesis looks for no smaller example.
    """

    def __init__(self, tests: Sequence[str]) -> None:
        self._order = {test: at for at, test in enumerate(tests)}

    def pytest_sessionstart(self) -> None:
        """Change the profile that conftest.py has loaded."""
        settings.register_profile("tried", settings(), phases=(Phase.explicit, Phase.generate))
        settings.load_profile("tried")

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Select, and put in order."""
        chosen = [item for item in items if item.nodeid in self._order]
        items[:] = sorted(chosen, key=lambda item: self._order[item.nodeid])


def _file_of(test: str) -> str:
    return test.partition("::")[0]


def _tests_of(mutant: Mutant, costs: Mapping[str, float]) -> tuple[list[str], list[str]]:
    """Returns the tests that run a mutant's statement: the first few, and the others.

    A statement that runs on import may show in any test of its folder. They begin with the file
    that is named after the module, or else with some of the one that has most, and go on with the
    cheapest test of each file, as a small file is about something else.
    """
    by_line = _tests_by_line(mutant.module)
    lines = _statement(mutant.module, mutant.line)
    running = {test for line in lines for test in by_line.get(line, ())} & costs.keys()
    running = running or _tests_of_folder(Path(mutant.module).parent) & costs.keys()
    files: dict[str, list[str]] = defaultdict(list)
    for test in sorted(running, key=lambda test: (costs[test], test)):
        files[_file_of(test)].append(test)
    ranks = {file: (*_nearness(mutant.module, file), len(tests)) for file, tests in files.items()}
    nearest = max(files, key=ranks.__getitem__, default="")
    own = files[nearest]
    few = min(FIRST_TESTS, len(own))
    whole = any(_nearness(mutant.module, nearest))
    files[nearest] = [] if whole else own[few:]
    others = (test for each in itertools.zip_longest(*files.values()) for test in each if test)
    rest = [*(own[few:] if whole else ()), *others]
    return own[:few], _within_budget(rest, costs)


def _nearness(module: str, file: str) -> tuple[bool, bool]:
    """Tell if a test file mirrors the module, and if it is named after it at all."""
    path = Path(module)
    mirror = f"tests/unit/{path.with_name(f'test_{path.name}')}"
    return file == mirror, path.stem in Path(file).name


def _within_budget(tests: Sequence[str], costs: Mapping[str, float]) -> list[str]:
    spent = itertools.accumulate(costs[test] for test in tests)
    return [test for test, so_far in zip(tests, spent, strict=True) if so_far <= BUDGET_S]


@functools.cache
def _tests_by_line(module: str) -> dict[int, list[str]]:
    measured = CoverageData(str(LINES))
    measured.read()
    by_line: dict[int, list[str]] = measured.contexts_by_lineno(str(TREE / "src/ostraka" / module))
    return by_line


@functools.cache
def _tests_of_folder(folder: Path) -> set[str]:
    modules = (TREE / "src" / "ostraka" / folder).glob("*.py")
    by_line = (_tests_by_line(str(folder / path.name)) for path in modules)
    return {test for each in by_line for tests in each.values() for test in tests}


def _statement(module: str, line: int) -> range:
    """Returns the lines of the innermost statement there; of one with a body, those of its head."""
    statements = [
        node
        for node in ast.walk(ast.parse(_source(ROOT / "src" / "ostraka" / module)))
        if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or line)
    ]
    inner = max(statements, key=lambda node: node.lineno)
    body = getattr(inner, "body", None)
    end = body[0].lineno - 1 if body else inner.end_lineno or line
    return range(inner.lineno, max(end, line) + 1)


# The report.


def _report(known: WorkDB, sample: Sequence[Mutant]) -> int:
    """Print the figures and the survivors; returns 1 if one of these is not listed, and else 0."""
    outcomes = _outcomes(known)
    run = [mutant for mutant in sample if mutant.job in outcomes]
    killed = [mutant for mutant in run if outcomes[mutant.job]]
    alive = [mutant for mutant in run if not outcomes[mutant.job]]
    survivors = [mutant for mutant in alive if not _is_listed(mutant)]
    for mutant in survivors:
        _say(f"survivor: {mutant}")
    for mutant in filter(_is_listed, killed):
        _say(f"listed as equivalent, but a test kills it: {mutant}")
    if len(run) < len(sample):
        _say(f"{len(sample) - len(run)} of {len(sample)} are still to be run")
    equivalent = len(alive) - len(survivors)
    _say(f"{len(killed)} killed, {equivalent} equivalent (listed), {len(survivors)} survivors")
    return min(len(survivors), 1)


def _is_listed(mutant: Mutant) -> bool:
    return any(
        (entry["module"], entry["was"]) == (mutant.module, mutant.was)
        and mutant.becomes in entry["becomes"]
        for entry in _equivalent()
    )


@functools.cache
def _equivalent() -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = tomllib.loads(LISTED.read_text())["equivalent"]
    return listed


if __name__ == "__main__":
    main()

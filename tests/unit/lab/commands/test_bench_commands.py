"""The benchmarks as commands: figures in a folder, a page, JSON last, and exit codes."""

import json
from functools import cache
from typing import Any

import pytest
from typer.testing import CliRunner

from ostraka.cli import app
from ostraka.errors import ConfigError, installing
from ostraka_lab.bench import check, fit, machine, process, results
from ostraka_lab.bench import peers as contests
from ostraka_lab.commands import bench, bench_leakage, bench_suites

PEER_FIGURES: dict[str, Any] = {
    "clients": 12,
    "dimension": 5000,
    "byzantine": 2,
    "kept": 10,
    "update_scale": 1e-4,
    "threads": 1,
    "repeat": 1,
    "rows": [
        {
            "name": "ostraka-exact",
            "cpu_s": 1.0,
            "enclave_cpu_s": 0.5,
            "wall_s": 1.0,
            "x_floor": None,
            "enclave_x_floor": 1.75,
            "enclave_x_clear": 0.625,
            "cpu_spread": 0.0,
            "peak_rss_mib": 100.0,
            "prepare_cpu_s": 0.1,
            "receiving_cpu_s": 0.2,
            "sealing_cpu_s": 0.1,
            "clients_cpu_s": 0.1,
            "unpacking_cpu_s": None,
            "worker_cpu_s": 0.5,
            "all_roles_cpu_s": 1.1,
            "all_roles_over": {"byzfl-torch": 0.275, "blas-clear": 1.1},
            "correct": True,
            "attackers_kept": 0,
            "absent": None,
        },
        dict.fromkeys(
            (
                *("cpu_s", "enclave_cpu_s", "wall_s", "x_floor", "cpu_spread", "peak_rss_mib"),
                *("enclave_x_floor", "enclave_x_clear"),
                *("prepare_cpu_s", "receiving_cpu_s", "sealing_cpu_s", "clients_cpu_s"),
                *("unpacking_cpu_s", "worker_cpu_s", "all_roles_cpu_s"),
                *("correct", "attackers_kept"),
            )
        )
        | {
            "name": "flower",
            "all_roles_over": {},
            "absent": f"absent: {installing('flower')}",
        },
    ],
    "machine": machine.describe(threads=1),
}


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs a line in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    return lambda line: CliRunner().invoke(app, line.split(), prog_name="ostraka")


@pytest.fixture
def peers(monkeypatch):
    asked = []

    def play(contest, step, *, names, repeat):
        asked.append((contest, tuple(names), repeat))
        return PEER_FIGURES

    monkeypatch.setattr(contests, "play", play)
    return asked


def test_figures_are_kept_and_drawn_and_the_last_line_is_json(run, peers, tmp_path):
    line = "bench peers --clients 12 --dimension 5000 --only floor --only ostraka-exact"
    result = run(f"{line} --out here --json")
    assert result.exit_code == 0, result.output
    shown = json.loads(result.stdout.splitlines()[-1])
    assert shown["clients"] == 12
    assert shown["rows"] == PEER_FIGURES["rows"]
    assert shown["command"] == f"ostraka {line}"
    assert shown["report"] == "here/report.html"
    assert line in (tmp_path / "here" / "report.html").read_text()
    assert json.loads((tmp_path / "here" / "peers.json").read_text())["dimension"] == 5000
    contest, names, repeat = peers[0]
    assert (contest.clients, contest.dimension) == (12, 5000)
    assert names == ("floor", "ostraka-exact")
    assert repeat == 3


def test_a_table_says_who_is_right_and_who_is_absent(run, peers):
    shown = run("bench peers").stdout
    assert "ostraka-exact" in shown
    assert "flower is absent: in a clone, pip install" in shown
    assert "Correct: no attacker" in shown
    assert "all roles s" in shown
    assert "Enclave of ostraka-exact: 1.75 floors, 0.62 of blas-clear" in shown
    assert "All roles of ostraka-exact: 0.28 of byzfl-torch's, 1.10 of blas-clear's." in shown
    assert "All roles of flower" not in shown


def test_the_tables_of_peers_fit_on_80_columns(run, monkeypatch):
    seconds = ("cpu_s", "enclave_cpu_s", "all_roles_cpu_s", "wall_s", "x_floor")
    wide = PEER_FIGURES["rows"][0] | dict.fromkeys(seconds, 1234.567) | {"peak_rss_mib": 123456.7}
    small = wide | dict.fromkeys(seconds, 0.01234567) | {"correct": False, "attackers_kept": 128}
    found = [wide | {"name": max(contests.NAMES, key=len)}, small]
    figures = PEER_FIGURES | {"clients": 1024, "dimension": 100_000_000, "rows": found}
    monkeypatch.setattr(contests, "play", lambda *_, **__: figures)
    monkeypatch.setenv("COLUMNS", "80")
    lines = [" ".join(line.split()) for line in run("bench peers").stdout.splitlines()]
    assert "Name cpu s enclave s all roles s wall s x floor" in lines
    assert "ostraka-sketch-inside" + " 1235" * 5 in lines
    assert "ostraka-exact" + " 0.0123" * 5 in lines
    assert "Name peak MiB Correct" in lines
    assert "ostraka-exact 123457 no: 128 attackers" in lines


def test_setup_measures_nothing(run, peers, monkeypatch, tmp_path):
    monkeypatch.setattr(contests, "setup", lambda step: tmp_path)
    result = run("bench peers --setup --json")
    assert json.loads(result.stdout) == {"setup": str(tmp_path)}
    assert peers == []


def test_figures_without_plots_are_figures(run, peers, monkeypatch):
    monkeypatch.setattr("ostraka_lab.commands.bench_results._page", lambda folder: None)
    result = run("bench peers --json")
    assert json.loads(result.stdout.splitlines()[-1])["report"] is None


@pytest.mark.parametrize("spoil", ["a file", "a result of another version"])
def test_figures_are_shown_though_they_cannot_be_kept(run, peers, tmp_path, spoil):
    if spoil == "a file":
        (tmp_path / "here").write_text("in the way")
    else:
        (tmp_path / "here").mkdir()
        (tmp_path / "here" / "scale.json").write_text("{}")
    result = run("bench peers --out here --json")
    assert result.exit_code == 0, result.output
    shown = json.loads(result.stdout.splitlines()[-1])
    assert shown["report"] is None
    assert shown["rows"] == PEER_FIGURES["rows"]


def test_leakage_to_a_worker_runs_in_a_process_of_its_own(run):
    result = run("bench leakage --only worker --clients 4 --dimension 512 --trials 8 --json")
    assert result.exit_code == 0, result.output
    shown = json.loads(result.stdout.splitlines()[-1])
    assert "leave_out" not in shown
    assert len(shown["gaussian"]) == 30
    assert [row["clients"] for row in shown["polar"]] == [4, 8, 16, 32, 64]
    assert shown["exact"]["bound_bits"] == 0


@pytest.mark.slow
def test_leakage_to_the_host_runs_in_a_process_of_its_own(run, tmp_path):
    result = run("bench leakage --only host --rounds 1 --json")
    assert result.exit_code == 0, result.output
    shown = json.loads(result.stdout.splitlines()[-1])
    assert "gaussian" not in shown
    rows = shown["leave_out"]["rows"]
    assert len(rows) == 12
    assert sum(row["attacks"] for row in rows) == 6 * (10 + 25)
    assert "Cosine of the estimate" in (tmp_path / "bench-results" / "report.html").read_text()


def test_what_the_host_learns_is_a_table(run, monkeypatch):
    row = {"clients": 10, "rule": "multi-krum", "f": 2, "momentum": 0.9, "median": 0.8125}
    row |= {"quartiles": [0.625, 0.9375], "guess_median": 0.375}
    figures = {"dataset": "digits", "partition": "dirichlet:0.3", "steps": 1, "rows": [row]}
    monkeypatch.setattr("ostraka_lab.commands.bench_leakage.run_module", lambda *_: figures)
    result = run("bench leakage --only host")
    assert result.exit_code == 0, result.output
    shown = " ".join(result.stdout.split())
    assert "10 multi-krum, f = 2 0.9 0.81 0.62 to 0.94 0.38" in shown


def test_leakage_measures_nothing_if_either_plan_is_impossible(run, monkeypatch):
    def measured(*_):
        raise AssertionError("nothing should be measured")

    monkeypatch.setattr("ostraka_lab.commands.bench_leakage.run_module", measured)
    for line in ("--rounds 0", "--steps 0", "--trials 0"):
        assert run(f"bench leakage {line}").exit_code == 2


def test_paper_passes_its_options_on(run, monkeypatch):
    asked = []

    def refuse(suite, step, parts):
        asked.append(suite)
        raise ConfigError("enough")

    monkeypatch.setattr("ostraka_lab.bench.paper.run", refuse)
    run("bench paper --bandwidth 10 --sgx-slowdown 1.5 --repeat 2")
    run("bench paper --quick")
    assert (asked[0].bandwidth, asked[0].slowdown, asked[0].repeat) == (10.0, 1.5, 2)
    assert asked[0].clients == (8, 16, 32, 64, 128)
    assert asked[1].share > 1
    run("bench paper --only offloading")
    assert asked[2].parts == ("offloading",)
    assert asked[2].bandwidth == 8


def test_small_figures_of_the_paper_are_said_to_be_small(run, monkeypatch):
    figures = {"headline": [], "figure3": [], "offloading": {}, "machine": PEER_FIGURES["machine"]}
    monkeypatch.setattr("ostraka_lab.bench.paper.run", lambda *_: figures)
    monkeypatch.setattr("ostraka_lab.commands.bench_results._page", lambda folder: None)
    said = "these figures and ratios say nothing of full size"
    for line, small in (("bench paper --quick", True), ("bench paper", False)):
        result = run(line)
        assert result.exit_code == 0, result.output
        assert (said in result.stdout) == small


SCALE = (
    "bench scale --clients 8 --clients 12 --dimension 500 --dimension 1000 --repeat 1 "
    "--budget 600 --out here"
)


@cache
def by_a_process(module, *arguments):
    """Processes take long to start, so what was measured once is good for all tests."""
    return process.run_module(module, list(arguments), lambda *_: None)


@pytest.fixture
def cells(monkeypatch):
    """Sizes that were measured. stop(at): Ctrl-C comes when so many are."""
    seen: list[tuple[str, ...]] = []

    def stop(at, error=KeyboardInterrupt):
        def run_module(module, arguments, begin):
            if len(seen) == at:
                raise error
            seen.append(tuple(arguments[:2]))
            return by_a_process(module, *arguments)

        monkeypatch.setattr(results, "run_module", run_module)
        return seen

    monkeypatch.setattr(fit, "_DRAWS", 5)
    return stop


def test_scale_measures_the_sizes_that_are_named(run, cells):
    cells(None)
    result = run(f"{SCALE} --json")
    assert result.exit_code == 0, result.output
    shown = json.loads(result.stdout.splitlines()[-1])
    measured = {(cell["clients"], cell["dimension"]) for cell in shown["cells"]}
    skipped = {tuple(pair) for pair in shown["skipped"]}
    assert measured | skipped == {(n, d) for n in (8, 12) for d in (500, 1000)}
    assert shown["command"] == f"ostraka {SCALE}".replace(" 600 --out here", " 600.0")


def test_a_benchmark_that_is_stopped_goes_on_with_the_same_command(run, cells, tmp_path):
    seen = cells(2)
    stopped = run(SCALE)
    assert stopped.exit_code == 130, stopped.output
    kept = "here/scale.parts.jsonl"
    told = f"stopped with 2 parts kept in {kept}: the same command resumes from there\n"
    assert stopped.stderr == told
    assert stopped.stdout == ""
    assert not (tmp_path / "here" / "scale.json").exists()
    cells(None)
    done = run(f"{SCALE} --json")
    assert done.exit_code == 0, done.output
    assert done.stderr.startswith("resuming with 2 parts measured before (begun ")
    assert done.stderr.count("resuming with") == 1
    assert sorted(seen) == sorted(set(seen))
    shown = json.loads(done.stdout.splitlines()[-1])
    assert len(shown["cells"]) == len(seen)
    assert (tmp_path / "here" / "scale.json").exists()
    assert not (tmp_path / kept).exists()


def test_fresh_and_other_options_begin_anew(run, cells):
    seen = cells(1)
    run(SCALE)
    seen.clear()
    fresh = run(f"{SCALE} --fresh")
    assert seen == [("8", "500")]
    assert fresh.stderr.endswith("the same command, without --fresh, resumes from there\n")
    seen.clear()
    other = run(SCALE.replace("12", "13"))
    path = "here/scale.parts.jsonl"
    assert f"starting over: {path}: 1 part with different options" in other.stderr
    assert seen == [("8", "500")]
    cells(None)
    done = run(f"{SCALE} --fresh --json")
    assert "--fresh" not in json.loads(done.stdout.splitlines()[-1])["command"]


def test_what_stopped_it_is_told_with_what_is_kept(run, cells):
    cells(1, ConfigError("no more"))
    result = run(SCALE)
    assert result.exit_code == 2
    assert "stopped with 1 part kept in here/scale.parts.jsonl" in result.stderr
    assert result.stderr.endswith("ostraka: no more\n")


def test_a_benchmark_that_is_stopped_at_once_keeps_nothing_and_says_nothing(run, cells, tmp_path):
    cells(0)
    result = run(SCALE)
    assert (result.exit_code, result.output) == (130, "")
    assert list(tmp_path.iterdir()) == []


def test_parts_are_kept_until_the_figures_are(run, cells, tmp_path, monkeypatch):
    def full(*_):
        raise OSError("no space left")

    seen = cells(None)
    with monkeypatch.context() as disk:
        disk.setattr("ostraka_lab.bench.results.save", full)
        assert run(SCALE).exit_code == 0
    assert (tmp_path / "here" / "scale.parts.jsonl").exists()
    before = list(seen)
    assert run(SCALE).exit_code == 0
    assert seen == before
    assert list((tmp_path / "here").glob("*.parts.jsonl")) == []


def now(value):
    return {
        "format": 3,
        "clients": 8,
        "dimension": 5000,
        "repeat": 3,
        "ratios": {"floor": {"value": value, "noise": 0.01}},
        "machine": machine.describe(threads=1),
    }


@pytest.fixture
def measuring(monkeypatch):
    plans = []

    def measure(value):
        def fake(plan, step):
            plans.append(plan)
            return now(value) | {"clients": plan.clients, "dimension": plan.dimension}

        monkeypatch.setattr(check, "run", fake)
        return plans

    return measure


def test_a_regression_fails_and_noise_does_not(run, measuring, tmp_path):
    measuring(1.0)
    saved = run("bench check --save --clients 9 --dimension 20000")
    assert saved.exit_code == 0, saved.output
    assert (tmp_path / "benchmarks" / "baseline.json").exists()
    plans = measuring(1.05)
    assert run("bench check").exit_code == 0
    assert (plans[-1].clients, plans[-1].dimension) == (9, 20000)
    measuring(1.5)
    failed = run("bench check --json")
    assert failed.exit_code == 1
    assert json.loads(failed.stdout.splitlines()[-1])["slower"] == ["floor"]
    assert run("bench check --tolerance 0.6").exit_code == 0


@pytest.mark.parametrize(
    ("name", "told"),
    [("processor", "from another processor: abacus"), ("loops", "of other loops: abacus")],
)
def test_a_baseline_of_another_machine_is_told_of(run, measuring, tmp_path, name, told):
    measuring(1.0)
    run("bench check --save")
    assert "warning" not in run("bench check").output
    path = tmp_path / "benchmarks" / "baseline.json"
    baseline = json.loads(path.read_text())
    baseline["machine"][name] = "abacus"
    path.write_text(json.dumps(baseline))
    assert f"warning: the baseline is {told}" in run("bench check").output


def test_a_check_without_a_baseline_says_how_to_make_one(run):
    result = run("bench check")
    assert result.exit_code == 2
    assert "--save" in result.stderr


def test_every_command_has_json_and_a_folder():
    for command in (
        bench.check,
        bench_leakage.leakage,
        bench_suites.paper,
        bench_suites.peers,
        bench_suites.scale,
    ):
        names = command.__annotations__
        assert {"as_json", "out"} <= set(names)


def test_rules_shows_what_deciding_and_reducing_costs(run):
    size = "--clients 9 --dimension 5000 --repeat 1"
    result = run(f"bench rules {size}")
    assert result.exit_code == 0, result.output
    assert "9 updates of 5000 values, threads: 1" in result.stdout
    told = " ".join(result.stdout.split())
    for word in ("decide, ms", "multi-krum", "x weights", "trimmed-mean", "Nanoseconds a value"):
        assert word in told
    assert "Inner products with the last aggregate, for centred-clipping, take" in told
    figures = json.loads(run(f"bench rules {size} --json").stdout.splitlines()[-1])
    assert {"rounds", "rules", "last", "columns", "reductions", "machine"} <= set(figures)
    assert run("bench rules --repeat 0").exit_code == 2


def test_confirm_shows_every_step_in_words(run):
    result = run("bench confirm --clients 7 --receipts 2 --repeat 1")
    assert result.exit_code == 0, result.output
    assert "7 clients, of whom 5 must confirm" in result.stdout
    assert "The newcomer's chain has 2 receipts." in " ".join(result.stdout.split())
    figures = run("bench confirm --clients 7 --receipts 2 --repeat 1 --json")
    assert "newcomer" in json.loads(figures.stdout.splitlines()[-1])["steps"]
    assert run("bench confirm --repeat 0").exit_code == 2


@pytest.mark.slow
def test_ray_shows_what_it_adds_and_gives_figures(run):
    pytest.importorskip("ray", reason="needs ray: make test-env")
    result = run("bench ray --clients 8 --dimension 5000 --nodes 1 --repeat 1 --json")
    assert result.exit_code == 0, result.output
    figures = json.loads(result.stdout.splitlines()[-1])
    assert figures["ray"]["cpu_s"] - figures["one_process"]["cpu_s"] == figures["added_cpu_s"]
    assert run("bench ray --nodes 0").exit_code == 2

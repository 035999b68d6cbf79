"""The page of a folder: all that is there is on it, with the command that makes it."""

import pytest

from ostraka_lab.bench import machine, results
from ostraka_lab.bench.process import Figures
from ostraka_lab.bench.report import _targets, describe, write
from ostraka_lab.bench.scale import UNCHECKED
from ostraka_lab.report import Paragraph, Table, render
from ostraka_lab.report.format import SPACE

MACHINE = machine.describe(threads=1)
COMMON: Figures = {"machine": MACHINE, "measured": "2026-01-01 00:00 UTC"}

PEER: Figures = {
    "cpu_s": 2.0,
    "enclave_cpu_s": None,
    "worker_cpu_s": None,
    "prepare_cpu_s": None,
    "receiving_cpu_s": None,
    "sealing_cpu_s": None,
    "clients_cpu_s": 0.25,
    "unpacking_cpu_s": 0.25,
    "all_roles_cpu_s": 2.5,
    "wall_s": 2.5,
    "peak_rss_mib": 1700.0,
    "inputs_rss_mib": 900.0,
    "cpu_spread": 0.05,
    "x_floor": 8.0,
    "correct": False,
    "attackers_kept": 8,
    "correct_on_differences": True,
    "absent": None,
}
NOTHING: Figures = dict.fromkeys(PEER)
PEERS = COMMON | {
    "command": "ostraka bench peers --clients 64",
    "clients": 64,
    "dimension": 3_500_000,
    "byzantine": 12,
    "kept": 52,
    "update_scale": 1e-4,
    "threads": 1,
    "repeat": 3,
    "rows": [
        PEER | {"name": "flower"},
        NOTHING | {"name": "byzfl-torch", "absent": "absent: ostraka bench peers --setup"},
        PEER | {"name": "blas-clear", "cpu_s": 1.0, "all_roles_cpu_s": 1.5, "correct": True},
        PEER | {"name": "floor", "cpu_s": 0.25, "correct": None, "attackers_kept": None},
        PEER
        | {
            "name": "ostraka-exact-sketch",
            "cpu_s": 0.75,
            "enclave_cpu_s": 0.5,
            "all_roles_cpu_s": 2.0,
            "correct": True,
        },
    ],
}

OVER = {
    f"{prefix}over_{base}": 9.0
    for prefix in ("", "round_", "detection_")
    for base in ("naive", "blas64", "blas32")
}
SPREADS = {"naive": 0.1, "blas64": 0.1, "blas32": 0.1}
PAPER = COMMON | {
    "command": "ostraka bench paper",
    "headline": [
        {
            "clients": 64,
            "dimension": 3_500_000,
            "sketch": 16_384,
            "inside": {base: {"enclave_cpu_s": 3.0, "spread": 0.1} for base in SPREADS},
            "rows": [
                {
                    "name": name,
                    "enclave_cpu_s": 0.5,
                    "spread": 0.1,
                    "detection_cpu_s": 0.375,
                    "prepare_cpu_s": 0.5,
                    "slowest_worker_s": 0.25,
                    **OVER,
                }
                for name in ("exact", "sketch-inside", "sketch")
            ],
        }
    ],
    "offloading": {
        "rows": [
            {
                "clients": clients,
                "dimension": 65_536,
                "seconds": {"naive": 4.0, "blas64": 2.0, "blas32": 1.0, "exact": 1.5},
            }
            for clients in (16, 64)
        ],
        "pays": {"exact": {"naive": [12, None], "blas64": [1, 345], "blas32": None}},
    },
    "repeat": 3,
    "figure2a": [
        {
            "network": "mobilenetv2",
            "clients": clients,
            "dimension": 3_500_000,
            "columns_measured": 3_000_000,
            "naive_s": 3.0,
            "blas32_s": 0.4,
            "blas64_s": 1.0,
            "spread": SPREADS,
        }
        for clients in (8, 128)
    ],
    "figure2b": [
        {
            "network": network,
            "clients": 8,
            "masking": masking,
            "device": device,
            "clock": clock,
            "kernel_s": 1.0,
            "over_naive": 3.0,
            "over_blas64": 1.0,
            "over_blas32": 0.5,
        }
        for network in ("mobilenetv2", "efficientnet-b0")
        for masking in ("exact", "gaussian")
        for device, clock in (("cpu", "cpu"), ("cuda", "wall"))
    ],
    "figure3": [
        {
            "network": "mobilenetv2",
            "masking": "exact",
            "clients": 64,
            "seconds": {"training": 9.0, "communication": 7.0, "prepare": 1.0, "open": 0.1},
            "training_steps": 25,
            "training_steps_timed": 4,
        }
    ],
    "bandwidth_gbit_s": 8.0,
    "slowdown": {
        "factor": 2.5,
        "assumed": True,
        "rows": [{"clients": 64, "dimension": 3_500_000, "name": "exact"} | OVER],
    },
    "not_measured": ["SGX itself."],
}

COSTS = {
    "enclave_cpu_s": 1.0,
    "worker_cpu_s": 2.0,
    "prepare_cpu_s": 3.0,
    "uploaded_bytes": 4e9,
    "shared_bytes": 8e9,
}
EXPONENT = {"N": {"value": 1.04, "error": 0.02}, "d": {"value": 1.01, "error": 0.01}}
SCALE = COMMON | {
    "command": "ostraka bench scale",
    "cells": [
        {"clients": n, "dimension": d, "enclave_bytes": 2**25, "medians": {"exact": COSTS}}
        for n in (8, 1024)
        for d in (10**5, 10**7)
    ],
    "skipped": [[1024, 10**8]],
    "fits": [
        {
            "variant": "exact",
            "cost": cost,
            "exponents": EXPONENT,
            "exponents_few": EXPONENT,
            "exponents_many": None,
            "forecast": {
                "value": 1e5,
                "low": 9e4,
                "high": 2e5,
                "misfit": 0.05,
                "clients": 10_000,
                "terms": {"N d": 2e-9, "N²": 0.0},
            },
        }
        for cost in ("enclave_cpu_s", "uploaded_bytes")
    ],
    "target": {"clients": 10_000, "dimension": 10**9, "sketch": 4096},
    "splits": [{"what": "clients, by the sketch", "why": "too many values", "pieces": 3}],
}

LEAKAGE = COMMON | {
    "command": "ostraka bench leakage",
    "clients": 16,
    "dimension": 20_000,
    "trials": 512,
    "gaussian": [
        {
            "dtype": dtype,
            "sigma": sigma,
            "bound_bits": 1 / sigma,
            "auc": 0.7,
            "distance_error": error,
            "distance_error_stated": 10 * error,
        }
        for dtype, error in (("float32", 1e-3), ("float64", 0.0))
        for sigma in (1.0, 1024.0)
    ],
    "exact": {"bound_bits": 0.0, "auc": 0.5, "distance_error": 1e-4},
    "polar": [{"clients": n, "gaussian": 0.97, "exact": 0.5, "expected": 0.98} for n in (16, 64)],
    "leave_out": {
        "dataset": "digits",
        "partition": "dirichlet:0.3",
        "steps": 1,
        "rows": [
            {
                "clients": 10,
                "rule": "multi-krum",
                "f": 2,
                "momentum": 0.9,
                "median": 0.8125,
                "quartiles": [0.625, 0.9375],
                "guess_median": 0.375,
            }
        ],
    },
}

CHECK = COMMON | {
    "command": "ostraka bench check",
    "clients": 32,
    "dimension": 500_000,
    "baseline": "benchmarks/baseline.json",
    "rows": [
        {
            "stage": "floor",
            "ratio": 1.5,
            "baseline": 1.0,
            "change": 0.5,
            "limit": 0.1,
            "slower": True,
        }
    ],
}

ALL: dict[str, Figures] = {
    "peers": PEERS,
    "paper": PAPER,
    "scale": SCALE,
    "leakage": LEAKAGE,
    "check": CHECK,
}


@pytest.mark.parametrize("name", ALL)
def test_each_benchmark_can_stand_alone(name):
    text = render(describe({name: ALL[name]}))
    assert ALL[name]["command"] in text
    assert MACHINE["processor"] in text
    assert "2026-01-01" in text


def test_the_page_holds_all_that_the_folder_holds(tmp_path):
    for name, figures in ALL.items():
        results.save(tmp_path, name, figures)
    text = write(tmp_path).read_text().replace(SPACE, " ")
    for figures in ALL.values():
        assert figures["command"] in text
    for expected in (
        "byzfl-torch is absent: ostraka bench peers --setup",
        "0.375 ×",  # ours over Flower, without what clients do
        "0.8 ×",  # all roles of both
        "2 ×",  # the enclave over the floor
        "1.04 ± 0.02",
        "Slower:",
        "Assumed, not measured",
        "Finding the outliers alone",
        "SGX itself.",
    ):
        assert expected in text, expected


@pytest.mark.parametrize(
    ("left", "shown", "hidden"),
    [
        (("leave_out",), "Cosine of the estimate", "The polar attack"),
        (("clients", "gaussian", "exact", "polar"), "The polar attack", "Cosine of the estimate"),
    ],
)
def test_leakage_shows_the_attacks_that_were_run(left, shown, hidden):
    partly = {"dimension": 20_000, "trials": 512} | {name: LEAKAGE[name] for name in left}
    text = render(describe({"leakage": COMMON | {"command": "ostraka bench leakage"} | partly}))
    assert shown in text
    assert hidden not in text


def test_a_gain_on_a_sketch_is_not_credited_to_off_loading():
    """Workers without a sketch, a sketch without workers, and what workers add to a sketch."""
    (each,) = PAPER["headline"]
    exact, inside, both = each["rows"]
    slower = [exact | {"over_naive": 2.0}, inside, both | {"enclave_cpu_s": 1.0}]
    page = describe({"paper": PAPER | {"headline": [each | {"rows": slower}]}})
    shown = {figure.label: figure.value.replace(SPACE, " ") for figure in page.figures}
    assert shown == {
        "Workers, no sketch": "2 ×",
        "Sketch, no workers": "9 ×",
        "Workers on a sketch": "0.5 ×",
    }


def test_figure_2b_is_drawn_for_each_masking_and_device_with_a_series_a_network():
    text = render(describe({"paper": PAPER}))
    for masking in ("exact", "gaussian"):
        for device, clock in (("cpu", "cpu"), ("cuda", "wall")):
            assert f"Speed-up of a worker&#x27;s kernel, {masking} masks, {device}" in text
            assert f"kernel on {device} ({clock} time), {masking} masks" in text


def test_what_was_not_asked_for_is_left_out():
    nothing: Figures = {"figure2a": [], "figure2b": [], "figure3": [], "headline": []}
    text = render(describe({"paper": PAPER | nothing | {"slowdown": None}}))
    assert "For how many clients a scheme" in text
    assert "Figure 2a" not in text
    assert "Figure 3" not in text


def test_the_paper_s_figures_are_a_document_too(tmp_path):
    results.save(tmp_path, "paper", PAPER)
    write(tmp_path)
    text = (tmp_path / "paper.md").read_text()
    assert "`ostraka bench paper`" in text
    assert f"| processor | {MACHINE['processor']} |" in text
    assert "| workers: exact masks | from 12 | up to 345 | never |  |" in text
    assert "| mobilenetv2 | 8 | 3,500,000 | 3,000,000 | 3 s | 1 s | 0.4 s |" in text
    assert "| mobilenetv2 | 8 | exact | cuda | wall | 1 s | 3 × | 1 × | 0.5 × |" in text
    assert "Figure 3: an epoch of 64 clients, at 8 Gbit/s" in text
    assert SPACE not in text


def test_all_roles_are_set_against_all_roles():
    page = describe({"peers": PEERS})
    (ours,) = [each for each in page.figures if each.label == "CPU of a private round"]
    assert ours.value.replace(SPACE, " ") == "0.8 ×"
    assert "0.375" in ours.note
    assert "Training, the network and TLS are in no row" in render(page)


def test_who_is_absent_is_in_no_ratio():
    text = render(describe({"peers": PEERS}))
    assert "/ byzfl-torch" not in text
    assert "/ flower" in text


def wanted(**found):
    """The rows of the targets' table, and what stands below it."""
    table, counted, *below = _targets(found)
    assert isinstance(table, Table)
    assert isinstance(counted, Paragraph)
    assert "with the clients' sealing" in counted.text
    return {row[0]: row[1:] for row in table.rows}, below


def test_targets_say_what_was_reached():
    rows, below = wanted(peers=PEERS, paper=PAPER)
    assert rows == {
        "CPU of ostraka-exact-sketch, enclave and workers / flower (all roles 0.8)": [
            *("≤ 0.5", "0.375", "yes"),
        ],
        "CPU of ostraka-exact-sketch, enclave / floor (all roles 0.8)": ["≤ 2", "2", "yes"],
        "CPU of ostraka-exact-sketch, enclave / blas-clear (all roles 1.33)": [
            *("≤ 0.75", "0.5", "yes"),
        ],
        "Enclave's CPU of a round: the loop inside, 64 clients / workers: exact masks "
        "(whole round, outliers alone: loop 9, 9; BLAS float64 9, 9; BLAS float32 9, 9)": [
            *("≥ 8", "9", "yes"),
        ],
    }
    assert below == []


def test_a_target_that_is_missed_comes_with_a_profile():
    slow = PEERS | {"rows": [row | {"enclave_cpu_s": 0.8} for row in PEERS["rows"]]}
    seconds = {"open": 0.25, "arrive": 0.3, "encode": 0.1, "aggregate": 0.45}
    bar = PAPER["figure3"][0] | {"masking": "sketch", "seconds": seconds, "dimension": 3_504_872}
    other = bar | {"dimension": 7_794_184, "seconds": dict.fromkeys(seconds, 1.0)}
    rows, below = wanted(peers=slow, paper=PAPER | {"figure3": [other, bar]})
    assert rows["CPU of ostraka-exact-sketch, enclave / floor (all roles 0.8)"] == [
        "≤ 2",
        "3.2",
        "no",
    ]
    (profile,) = below
    assert "open 0.25 s, arrive 0.3 s, encode 0.1 s, aggregate 0.45 s" in profile.text.replace(
        SPACE, " "
    )


def test_exponents_have_targets_where_the_check_is_left_out():
    unchecked = [fit | {"variant": UNCHECKED} for fit in SCALE["fits"]]
    rows, _ = wanted(scale=SCALE | {"fits": unchecked})
    assert [row[0] for row in rows.values()] == ["≤ 1.1", "≤ 1.05"]
    assert all(row[-1] == "yes" for row in rows.values())


def test_other_sizes_have_no_targets():
    assert _targets({"peers": PEERS | {"clients": 16}, "scale": SCALE}) == []


def test_a_round_that_selected_wrongly_meets_no_target():
    wrong = PEERS | {"rows": [row | {"correct": False} for row in PEERS["rows"]]}
    rows, _ = wanted(peers=wrong)
    assert all(row[-1] == "no" for row in rows.values())


def test_leaky_masks_reach_no_target():
    (each,) = PAPER["headline"]
    leaky = each["rows"][0] | {"name": "gaussian", "over_naive": 100.0}
    rows, _ = wanted(paper=PAPER | {"headline": [each | {"rows": [leaky, *each["rows"]]}]})
    assert [row[1] for row in rows.values()] == ["9"]


def test_a_thousand_clients_have_a_profile_too():
    (each,) = PAPER["headline"]
    rows = [row | {"over_blas64": 2.5, "enclave_cpu_s": 3.75} for row in each["rows"]]
    many = each | {"clients": 1024, "dimension": 250_000, "rows": rows}
    found, below = wanted(paper=PAPER | {"headline": [many], "figure3": []})
    assert [row[1:] for row in found.values()] == [["2.5", "no"]]
    (profile,) = below
    assert "0.375 s of 3.75 s" in profile.text.replace(SPACE, " ")

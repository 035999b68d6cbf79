"""The Grafana dashboard and the alert rules: all that they ask for is there, and is explained."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import get_args

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from ostraka.core.metrics import NAMES
from ostraka.enclave.status import Status
from ostraka.events import Event

yaml = pytest.importorskip("yaml")  # It comes with Flower.

ROOT = Path(__file__).parents[2]
DASHBOARD = ROOT / "deploy" / "grafana" / "ostraka.json"
ALERTS = ROOT / "deploy" / "prometheus" / "alerts.yml"
OPERATIONS = ROOT / "docs" / "operations.md"
pytestmark = pytest.mark.skipif(not ALERTS.is_file(), reason="only the source tree has deploy/")

EVENTS = {kind.__name__ for kind in get_args(Event)}


def exported():
    """The names of all series, from a registry as the service has it before its first round."""
    text = generate_latest(Status(simulated=False, evidence="sgx").registry).decode()
    families = list(text_string_to_metric_families(text))
    names = {f"{each.name}_total" if each.type == "counter" else each.name for each in families}
    return {name for name in names if not name.endswith("_created")}  # the library's own


def dashboard():
    return json.loads(DASHBOARD.read_text())


def panels():
    return dashboard()["panels"]


def alerts():
    (group,) = yaml.safe_load(ALERTS.read_text())["groups"]
    return group["rules"]


def expressions():
    """Every expression, by who asks it."""
    asked = {
        f"panel {panel['title']}, {target['refId']}": target["expr"]
        for panel in panels()
        for target in panel["targets"]
    }
    asked |= {f"alert {each['alert']}": each["expr"] for each in alerts()}
    return asked | {
        f"variable {each['name']}": each["query"] for each in dashboard()["templating"]["list"]
    }


def names_in(text):
    return set(re.findall(r"\bostraka_[a-z_]+", text))


def unknown(expression):
    """What an expression asks for that no service exports."""
    missing = names_in(expression) - exported()
    for label, known in (("event", EVENTS), ("metric", set(NAMES))):
        missing |= set(re.findall(rf'\b{label}="([^"]*)"', expression)) - known
    return missing


def test_a_name_that_nobody_exports_would_be_found():
    assert unknown("rate(ostraka_rounds[5m])") == {"ostraka_rounds"}
    assert unknown('ostraka_events_total{event="WorkerLies"} > 0') == {"WorkerLies"}
    assert unknown('ostraka_reported_metric{metric="f1"}') == {"f1"}
    assert unknown("ostraka_events > 0") == {"ostraka_events"}


def test_every_name_in_an_expression_is_exported():
    for who, expression in expressions().items():
        assert unknown(expression) == set(), who


def test_every_name_that_is_exported_is_shown_and_documented():
    assert names_in(" ".join(expressions().values())) == exported()
    assert exported() <= names_in(OPERATIONS.read_text())


def test_panels_say_what_they_show():
    assert len({panel["title"] for panel in panels()}) == len(panels())
    for panel in panels():
        title = panel["title"]
        assert title
        assert panel["description"].endswith("."), title
        assert panel["fieldConfig"]["defaults"]["unit"], title
        assert panel["datasource"]["uid"] == "${datasource}", title
        assert [each["expr"] for each in panel["targets"]], title


def test_panels_do_not_overlap():
    taken = [
        (x, y)
        for at in (panel["gridPos"] for panel in panels())
        for x in range(at["x"], at["x"] + at["w"])
        for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(set(taken)) == len(taken)
    assert max(x for x, _ in taken) < 24


def anchors():
    titles = re.findall(r"(?m)^#+ (.+)$", OPERATIONS.read_text())
    return {re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-") for title in titles}


def test_alerts_say_what_to_do_and_where_it_stands():
    rows = OPERATIONS.read_text().partition("## What to do when")[2]
    for alert in alerts():
        name, notes = alert["alert"], alert["annotations"]
        assert name.startswith("Ostraka")
        assert alert["labels"]["severity"] in {"critical", "warning"}
        assert notes["summary"], name
        assert len(notes["description"].split()) > 5, name
        file, _, section = notes["runbook"].partition("#")
        assert (ROOT / file) == OPERATIONS
        assert section in anchors(), name
        for event in re.findall(r'event="(\w+)"', alert["expr"]):
            assert name == f"Ostraka{event}"
            assert re.search(rf"(?m)^\| `{event}`", rows), event


def test_all_that_is_logged_as_an_error_is_critical():
    """As docs/operations.md lists them."""
    critical = {each["alert"] for each in alerts() if each["labels"]["severity"] == "critical"}
    for event in ("WorkerLied", "StorageFailed", "RolledBack", "CopyProved"):
        assert f"Ostraka{event}" in critical


def firing(alert):
    """What makes this alert fire, as promtool's own tests have it."""
    events = re.findall(r'event="(\w+)"', alert["expr"])
    series = [("ostraka_rounds_published", "1+0x30")]
    series += [(f'ostraka_events_total{{event="{event}"}}', "0 0 1+0x28") for event in events]
    if alert["alert"] == "OstrakaDown":
        series = [('up{job="ostraka"}', "0+0x30")]
    if alert["alert"] == "OstrakaSimulated":
        series.append(("ostraka_simulated", "1+0x30"))
    if alert["alert"] == "OstrakaShardsAwaited":
        series.append(("ostraka_shards_missing", "1+0x30"))
    fires = f'count(ALERTS{{alertstate="firing",alertname="{alert["alert"]}"}}) > bool 0'
    others = f'count(ALERTS{{alertname!="{alert["alert"]}"}}) or vector(0)'
    return {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series],
        "promql_expr_test": [
            {"expr": expr, "eval_time": "10m", "exp_samples": [{"labels": "{}", "value": value}]}
            for expr, value in ((fires, 1), (others, 0))
        ],
    }


def test_promtool_reads_the_rules_and_each_fires_when_it_should_and_alone(tmp_path):
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("there is no promtool: it is in Debian's package prometheus")
    test = {"rule_files": [str(ALERTS)], "tests": [firing(each) for each in alerts()]}
    (tmp_path / "test.yml").write_text(yaml.safe_dump(test))
    for command in (["check", "rules", ALERTS], ["test", "rules", tmp_path / "test.yml"]):
        done = subprocess.run(
            [promtool, *command], capture_output=True, text=True, check=False, cwd=tmp_path
        )
        assert done.returncode == 0, done.stdout + done.stderr

"""Containers, the chart and the workflows: they parse, are hardened, and call what exists."""

import json
import re
import shlex
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from itertools import chain, pairwise
from pathlib import Path

import click
import jsonschema
import pytest
import typer
import yaml

from ostraka import __version__
from ostraka.cli import app
from ostraka.enclave.__main__ import parser

ROOT = Path(__file__).parents[2]
CONTAINERFILE = ROOT / "deploy" / "container" / "Containerfile"
COMPOSE = ROOT / "deploy" / "container" / "compose.yaml"
WITH_SHARDS = COMPOSE.with_name("compose.shards.yaml")
CHART = ROOT / "deploy" / "helm" / "ostraka"
PLAIN = ROOT / "deploy" / "kubernetes"
GITHUB = ROOT / ".github"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
MAKEFILE = (ROOT / "Makefile").read_text()


def require_command(arguments):
    """Raises unless these are arguments of `ostraka`, or of the enclave that it becomes."""
    if arguments[0] == "enclave":
        parser().parse_args(arguments[1:])
        return
    found: click.Command | None = typer.main.get_command(app)
    while isinstance(found, click.Group):
        name, found, arguments = found.resolve_command(click.Context(found), arguments)
    assert found is not None
    found.make_context(name, list(arguments))


def merged(base, more):
    both = {
        key: merged(base[key], value) if isinstance(value, dict) and key in base else value
        for key, value in more.items()
    }
    return {**base, **both}


def tool(name):
    path = Path(sys.executable).with_name(name)
    if not path.exists():
        pytest.skip(f"needs {name}, of the dev extra")
    return path


def said(*command):
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


# The image.


def instructions():
    """(name, text) of every instruction, with its continued lines."""
    text = re.sub(r"^#.*\n", "", CONTAINERFILE.read_text(), flags=re.MULTILINE)
    lines = text.replace("\\\n", " ").splitlines()
    return [tuple(line.split(maxsplit=1)) for line in lines if line.strip()]


def test_hadolint_finds_nothing():
    code, output = said(tool("hadolint"), CONTAINERFILE)
    assert (code, output) == (0, "")


def test_the_image_runs_as_nobody_special_and_has_no_compiler_or_pip():
    last = instructions()[max(n for n, (name, _) in enumerate(instructions()) if name == "FROM") :]
    user = [text for name, text in last if name == "USER"]
    assert user == ["10001:10001"]
    after = last[[name for name, _ in last].index("USER") :]
    assert not {"RUN", "COPY", "ADD"} & {name for name, _ in after}
    assert not any("apt-get" in text for _, text in instructions())
    assert any("pip uninstall" in text for _, text in instructions())


def test_bases_have_a_version_and_can_be_chosen():
    (base,) = [text for name, text in instructions() if name == "ARG"]
    assert re.fullmatch(r"BASE=\S+:\d+\.\d+\.\d+-slim-\w+", base)
    assert {text.split()[0] for name, text in instructions() if name == "FROM"} == {"${BASE}"}


def test_the_image_installs_the_wheel_under_the_constraints():
    (installed,) = [text for _, text in instructions() if "pip install" in text]
    assert "-c /build/constraints.txt" in installed
    assert ("COPY", "constraints.txt dist/*.whl /build/") in instructions()


# The version.

RELEASE = __version__.partition(".dev")[0]  # what is built here, or what it becomes


def test_all_name_the_same_version():
    chart, values = (yaml.safe_load((CHART / f"{n}.yaml").read_text()) for n in ("Chart", "values"))
    assert (chart["version"], chart["appVersion"], values["image"]["tag"]) == (RELEASE,) * 3
    assert f'org.opencontainers.image.version="{RELEASE}"' in CONTAINERFILE.read_text()
    told = [CONTAINERFILE, COMPOSE, WITH_SHARDS, *PLAIN.glob("*.yaml")]
    told += [ROOT / "deploy" / "README.md", ROOT / "docs" / "attestation.md"]
    for path in told:
        assert set(re.findall(r"\bostraka(?:-ray)?:(\d[\w.]*\w)", path.read_text())) == {RELEASE}, (
            path
        )


@pytest.mark.skipif(__version__ != RELEASE, reason="this is no release")
def test_a_release_is_dated_and_not_in_development():
    first = re.search(r"^## \[(.*?)\](.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert first is not None
    assert first[1] == RELEASE
    assert re.fullmatch(r" - \d{4}-\d\d-\d\d", first[2])
    for name in ("README.md", "SECURITY.md"):
        text = " ".join((ROOT / name).read_text().split())
        assert "in development" not in text
        assert RELEASE in text


# Compose.

PLAIN_SERVICES = yaml.safe_load(COMPOSE.read_text())["services"]
SHARDED_SERVICES = merged(PLAIN_SERVICES, yaml.safe_load(WITH_SHARDS.read_text())["services"])
SERVICES = {name: PLAIN_SERVICES.get(name, each) for name, each in SHARDED_SERVICES.items()}


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_can_write_to_its_volume_only(name):
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["user"] == "10001:10001"
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert re.fullmatch(r"ostraka:\d\S+", service["image"])
    assert not {"privileged", "pid", "cap_add", "devices"} & set(service)
    assert service.get("network_mode", "none") == "none"


@pytest.mark.parametrize("name", SERVICES)
def test_no_service_needs_what_engines_do_differently(name):
    """podman-compose does not keep to every condition of `depends_on`: who needs a key waits."""
    assert "depends_on" not in SERVICES[name]
    script = " ".join([*SERVICES[name]["entrypoint"], *SERVICES[name]["command"]])
    assert ("touch ready" if name == "init" else "until test -e ready; do sleep 1; done;") in script


def commands_of(service):
    """The arguments of `ostraka` in a service's command."""
    if any("$$@" in part for part in service["entrypoint"]):
        return [service["command"]]
    (script,) = service["command"]
    name = service.get("environment", {}).get("NAME", "")
    script = script.replace("$$NAME", name)
    return [shlex.split(each) for each in re.findall(r"\bostraka ([^;&|{}]+)", script)]


def test_every_command_of_the_compose_files_exists():
    for service in (*PLAIN_SERVICES.values(), *SHARDED_SERVICES.values()):
        for arguments in commands_of(service):
            require_command(arguments)
        if probe := service.get("healthcheck"):
            assert probe["test"][:2] == ["CMD", "ostraka"]
            require_command(probe["test"][2:])


def test_the_compose_file_is_a_whole_federation():
    (made,) = [each for each in commands_of(SERVICES["init"]) if each[0] == "init"]
    clients = int(made[made.index("--clients") + 1])
    names = {name for name in SERVICES if name.startswith("client-")}
    assert names == {f"client-{n}" for n in range(1, clients + 1)}
    assert {name for name in SERVICES if name.startswith("worker-")} == {"worker-1", "worker-2"}
    assert "--unsafe-simulation" in SERVICES["enclave"]["command"]
    assert all(port.startswith("127.0.0.1:") for port in SERVICES["enclave"]["ports"])


def test_with_shards_each_of_them_is_started_and_workers_know_all():
    (made,) = [each for each in commands_of(SHARDED_SERVICES["init"]) if each[0] == "init"]
    count = int(made[made.index("--shards") + 1])
    for number in range(count):
        asked = parser().parse_args(SHARDED_SERVICES[f"shard-{number}"]["command"][1:])
        assert (asked.number, asked.advertise) == (number, f"shard-{number}:7420")
        assert asked.config == Path(f"fed/shard-{number}/federation.toml")
    expected = ["enclave:7420", *(f"shard-{number}:7420" for number in range(count))]
    for name in ("worker-1", "worker-2"):
        given = SHARDED_SERVICES[name]["command"]
        assert [b for a, b in pairwise(given) if a == "--enclave"] == expected


# The chart.


SIMULATED = {
    "enclave": {"unsafeSimulation": True, "simulationSecret": "sim", "tlsSecret": "tls"},
    "workers": {"list": [{"name": f"worker-{n}", "keySecret": f"key-{n}"} for n in (1, 2)]},
    "networkPolicy": {"metricsFrom": [{"app.kubernetes.io/name": "prometheus"}]},
}
WORKERS_ONLY = {
    "enclave": {"enabled": False},
    "workers": {
        "enclaveAddress": "fl.example:443",
        "list": [{"name": "worker-2", "keySecret": "key"}],
    },
    "image": {"digest": "sha256:" + "ab" * 32},
}
SHARDED = {
    "shards": {"count": 3, "serviceType": "LoadBalancer", "tlsAuthority": "ca.pem"},
    "workers": {"list": [{"name": "worker-1", "keySecret": "key-1"}]},
}
WORKERS_OF_SHARDS = merged(
    WORKERS_ONLY, {"workers": {"shardAddresses": [f"s-{n}.example:743{n}" for n in (0, 1)]}}
)
VALUES = {
    "as it comes": {},
    "simulated": SIMULATED,
    "workers only": WORKERS_ONLY,
    "with shards": SHARDED,
    "workers of shards": WORKERS_OF_SHARDS,
}


@pytest.fixture(params=VALUES.values(), ids=list(VALUES))
def rendered(request, tmp_path):
    """What Helm makes of the chart with these values."""
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(request.param))
    command = ("template", "rel", CHART, "-f", tmp_path / "values.yaml")
    code, output = said(tool("helm"), *command)
    assert code == 0, output
    return [each for each in yaml.safe_load_all(output) if each]


def test_helm_finds_nothing():
    code, output = said(tool("helm"), "lint", "--strict", CHART)
    assert code == 0, output


def test_what_is_rendered_is_of_kubernetes_schema(rendered):
    if find_spec("kubernetes_validate") is None:
        pytest.skip("needs kubernetes-validate, of the dev extra")
    import kubernetes_validate

    assert rendered
    for each in rendered:
        kubernetes_validate.validate(each, "1.37", strict=True)


def pods(rendered):
    return [each["spec"]["template"]["spec"] for each in rendered if "template" in each["spec"]]


def containers(pod):
    return [*pod.get("initContainers", []), *pod["containers"]]


def test_pods_are_hardened(rendered):
    assert pods(rendered)
    for pod in pods(rendered):
        context = pod["securityContext"]
        assert context["runAsNonRoot"] is True
        assert context["runAsUser"] == 10001
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["automountServiceAccountToken"] is False
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
        for each in containers(pod):
            assert each["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert not each["image"].endswith(":latest")
            for variable in each.get("env", ()):
                assert set(variable) == {"name", "valueFrom"}
                assert set(variable["valueFrom"]) == {"fieldRef"}


def test_secrets_are_named_and_never_made(rendered):
    assert not {"Secret", "ConfigMap"} & {each["kind"] for each in rendered}
    for pod in pods(rendered):
        mounted = [each["secret"] for each in pod["volumes"] if "secret" in each]
        assert mounted
        assert all(set(each) == {"secretName", "defaultMode"} for each in mounted)
        assert all(each["defaultMode"] == 0o440 for each in mounted)


def numbered(arguments):
    """As Kubernetes fills in a pod's ordinal."""
    return [word.replace("$(SHARD)", "1") for word in arguments]


def test_commands_of_the_chart_exist(rendered):
    for pod in pods(rendered):
        for each in pod["containers"]:
            require_command(numbered(each["args"]))
            probe = each.get("readinessProbe", {}).get("exec")
            if probe:
                assert probe["command"][0] == "ostraka"
                require_command(probe["command"][1:])


def test_what_the_pods_do_not_need_of_the_network_is_closed(rendered):
    policies = [each["spec"] for each in rendered if each["kind"] == "NetworkPolicy"]
    selected = [each["podSelector"]["matchLabels"] for each in policies]
    templates = [each["spec"]["template"] for each in rendered if "template" in each["spec"]]
    for each in templates:
        labels = each["metadata"]["labels"].items()
        assert any(wanted.items() <= labels for wanted in selected)
    for policy in policies:
        assert set(policy["policyTypes"]) == {"Ingress", "Egress"}


def test_an_enclave_has_a_volume_probes_and_a_budget(rendered):
    found = {
        each["kind"]: each["spec"] for each in rendered if each["metadata"]["name"] == "rel-enclave"
    }
    if "StatefulSet" not in found:
        assert "PodDisruptionBudget" not in found
        return
    (container,) = found["StatefulSet"]["template"]["spec"]["containers"]
    assert {"startupProbe", "readinessProbe", "livenessProbe"} <= set(container)
    assert found["StatefulSet"]["replicas"] == 1
    assert found["StatefulSet"]["volumeClaimTemplates"]
    assert found["PodDisruptionBudget"]["minAvailable"] == 1
    assert found["PodDisruptionBudget"]["selector"] == found["StatefulSet"]["selector"]


def test_simulation_is_never_the_default(rendered, request):
    arguments = [
        arg for pod in pods(rendered) for each in pod["containers"] for arg in each["args"]
    ]
    asked = "simulated]" in request.node.name
    assert ("--unsafe-simulation" in arguments) == asked


@pytest.mark.parametrize("rendered", [SHARDED], indirect=True)
def test_a_shard_knows_its_number_and_is_reached_by_itself(rendered):
    named = {(each["kind"], each["metadata"]["name"]): each["spec"] for each in rendered}
    shards = named["StatefulSet", "rel-shard"]
    assert shards["replicas"] == SHARDED["shards"]["count"]
    for number in range(shards["replicas"]):
        selector = named["Service", f"rel-shard-{number}"]["selector"]
        assert selector["apps.kubernetes.io/pod-index"] == f"{number}"
    (worker,) = named["Deployment", "rel-worker-1"]["template"]["spec"]["containers"]
    given = [b for a, b in pairwise(worker["args"]) if a == "--enclave"]
    assert given == ["rel-enclave:7420", *(f"rel-shard-{n}.rel-shards:7420" for n in range(3))]


# Plain manifests.


def manifests(name):
    return list(yaml.safe_load_all((PLAIN / name).read_text()))


def ray_pods(cluster):
    spec = cluster["spec"]
    groups = [spec["headGroupSpec"], *spec["workerGroupSpecs"]]
    return [group["template"] for group in groups]


def plain_pods(name):
    """Every pod of a file: those of Ray's clusters, too, of which Kubernetes has no schema."""
    for each in manifests(name):
        if each["kind"] == "RayCluster":
            yield from ray_pods(each)
        elif "template" in each["spec"]:
            yield each["spec"]["template"]


PLAIN_FILES = sorted(path.name for path in PLAIN.glob("*.yaml"))


@pytest.mark.parametrize("name", PLAIN_FILES)
def test_plain_manifests_are_of_kubernetes_schema(name):
    if find_spec("kubernetes_validate") is None:
        pytest.skip("needs kubernetes-validate, of the dev extra")
    import kubernetes_validate

    for each in manifests(name):
        if each["kind"] != "RayCluster":
            kubernetes_validate.validate(each, "1.37", strict=True)
    for pod in plain_pods(name):
        alone = {"apiVersion": "v1", "kind": "Pod", **pod}
        alone["metadata"] = {"name": "one", **pod["metadata"]}
        kubernetes_validate.validate(alone, "1.37", strict=True)


@pytest.mark.parametrize("name", PLAIN_FILES)
def test_plain_pods_are_hardened_have_resources_and_run_what_exists(name):
    found = [pod["spec"] for pod in plain_pods(name)]
    assert found
    test_pods_are_hardened([{"spec": {"template": {"spec": pod}}} for pod in found])
    for pod in found:
        for each in containers(pod):
            assert each["resources"]["requests"].keys() == {"cpu", "memory"}
            assert "memory" in each["resources"]["limits"]
            assert not any("unsafe" in word for word in each.get("args", ()))
            if "args" in each:
                require_command(numbered(each["args"]))
            probe = each.get("readinessProbe", {}).get("exec")
            if probe:
                require_command(probe["command"][1:])
        mounted = {each["name"] for each in pod["volumes"]}
        mounted |= {"data"}  # of a claim
        assert {m["name"] for each in containers(pod) for m in each["volumeMounts"]} <= mounted


def test_plain_shards_are_as_many_as_their_addresses_and_workers_know_all():
    specs = {(e["kind"], e["metadata"]["name"]): e["spec"] for e in manifests("shards.yaml")}
    count = specs["StatefulSet", "ostraka-shard"]["replicas"]
    alone = [spec for (kind, _), spec in specs.items() if kind == "Service" and "type" in spec]
    numbers = [spec["selector"]["apps.kubernetes.io/pod-index"] for spec in alone]
    assert numbers == [str(number) for number in range(count)]
    expected = [f"ostraka-shard-{n}.ostraka-shards:7420" for n in range(count)]
    serving = [
        each["args"]
        for name in ("workers.yaml", "ray-worker.yaml")
        for pod in plain_pods(name)
        for each in pod["spec"]["containers"]
        if "worker" in each.get("args", ())
    ]
    assert len(serving) == 3
    for args in serving:
        given = [b for a, b in pairwise(args) if a == "--enclave"]
        assert given == ["ostraka-lead:7420", *expected]


def test_nobody_but_its_own_pods_reaches_a_ray_cluster():
    (cluster, policy) = manifests("ray-worker.yaml")
    (rule,) = policy["spec"]["ingress"]
    labels = policy["spec"]["podSelector"]["matchLabels"]
    assert rule == {"from": [{"podSelector": {"matchLabels": labels}}]}
    for pod in ray_pods(cluster):
        assert labels.items() <= pod["metadata"]["labels"].items()


SCHEMA = json.loads((CHART / "values.schema.json").read_text())
DEFAULTS = yaml.safe_load((CHART / "values.yaml").read_text())


@pytest.mark.parametrize("values", VALUES.values(), ids=list(VALUES))
def test_the_schema_takes_these_values(values):
    jsonschema.Draft7Validator.check_schema(SCHEMA)
    jsonschema.validate(merged(DEFAULTS, values), SCHEMA)


REFUSED = {
    "the tag latest": {"image": {"tag": "latest"}},
    "a digest that is none": {"image": {"digest": "abc"}},
    "a simulation without its files": {"enclave": {"unsafeSimulation": True}},
    "a platform without simulation": {"enclave": {"simulationSecret": "sim"}},
    "a key as a value": {"workers": {"list": [{"name": "w", "keySecret": "k", "key": "00"}]}},
    "a setting that does not exist": {"enclave": {"replicas": 2}},
    "a size without a unit": {"enclave": {"storage": {"size": "20"}}},
    "a single shard": {"shards": {"count": 1}},
    "one address for all shards": {"shards": {"count": 2, "advertise": "shards.example:7420"}},
}


@pytest.mark.parametrize("values", REFUSED.values(), ids=list(REFUSED))
def test_the_schema_refuses_these_values(values):
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(merged(DEFAULTS, values), SCHEMA)


# What a forge runs. A source distribution does not have it.

needs_github = pytest.mark.skipif(not GITHUB.is_dir(), reason="only the repository has .github")
WORKFLOWS = {each.name: yaml.safe_load(each.read_text()) for each in GITHUB.glob("workflows/*.yml")}


def steps(workflow):
    return list(chain.from_iterable(job["steps"] for job in workflow["jobs"].values()))


@needs_github
def test_every_file_of_the_forge_parses():
    files = sorted(GITHUB.rglob("*.yml"))
    assert len(files) >= 5
    for path in files:
        assert isinstance(yaml.safe_load(path.read_text()), dict), path


@needs_github
@pytest.mark.parametrize("name", WORKFLOWS)
def test_a_workflow_runs_what_exists(name):
    ran = [step["run"] for step in steps(WORKFLOWS[name]) if "run" in step]
    assert ran
    for line in ran:
        for target in re.findall(r"\bmake ([a-z-]+)", line):
            assert f"\n{target}:" in MAKEFILE
        for file in re.findall(r"(?<!\S)(?:\.ci|tools|src)/[\w./]+", line):
            assert (ROOT / file).is_file()


@needs_github
def test_ci_runs_what_a_change_must_pass_on_every_python():
    job = WORKFLOWS["ci.yml"]["jobs"]["run"]
    assert ".ci/run" in [step.get("run") for step in job["steps"]]
    supported = [
        each.removeprefix("Programming Language :: Python :: ")
        for each in PROJECT["classifiers"]
        if re.search(r"Python :: 3\.\d+$", each)
    ]
    assert job["strategy"]["matrix"]["python"] == supported


@needs_github
@pytest.mark.parametrize("name", WORKFLOWS)
def test_a_workflow_may_do_little(name):
    """Nothing but reading unless a job says so, no moving branch of ours, and no secret."""
    workflow = WORKFLOWS[name]
    assert workflow["permissions"] == {"contents": "read"}
    text = (GITHUB / "workflows" / name).read_text()
    assert "secrets." not in text
    assert "pull_request_target" not in text
    for step in steps(workflow):
        if "uses" in step:
            assert re.fullmatch(r"[\w./-]+@(v\d+|release/v1|[0-9a-f]{40})", step["uses"])
        assert "${{" not in step.get("run", "")
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False


@needs_github
def test_a_release_is_attested_before_it_is_published():
    jobs = WORKFLOWS["release.yml"]["jobs"]
    used = [step.get("uses", step.get("run")) for step in jobs["build"]["steps"]]
    built, tried = used.index("make dist"), used.index("python tools/try_wheel.py dist/*.whl")
    attested = [n for n, each in enumerate(used) if each.startswith("actions/attest-build-prov")]
    assert built < tried < attested[0]
    assert jobs["publish"]["needs"] == "build"
    assert jobs["publish"]["environment"] == "release"

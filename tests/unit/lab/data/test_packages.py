"""Packages are fetched with the user's own npm or apt-get; here, with stand-ins for them."""

import pytest

from ostraka.errors import ServiceError
from ostraka_lab.data.catalogue import Package
from ostraka_lab.data.sources import fetch_package

NPM = Package("npm", "small", "1.2.3")
APT = Package("apt-get", "small")


@pytest.fixture
def space(tmp_path):
    (tmp_path / "space").mkdir()
    return tmp_path / "space"


def test_npm_packs_one_version_and_runs_nothing_of_it(client, space):
    client("npm", 'echo "$@" > small-1.2.3.tgz')
    file = fetch_package(NPM, space)
    assert file == space / "small-1.2.3.tgz"
    asked = file.read_text().split()
    assert asked[0] == "pack"
    assert asked[-1] == "small@1.2.3"
    assert "--ignore-scripts" in asked


def test_apt_get_downloads_without_installing(client, space):
    client("apt-get", 'echo "W: something" >&2; echo "$@" > small_1_all.deb')
    assert fetch_package(APT, space).read_text().split() == ["download", "--quiet", "small"]


FAILURES = {
    "npm": (NPM, "echo 'npm error code E404' >&2; exit 1", "npm small 1.2.3: npm error code E404"),
    "apt-get": (
        APT,
        "echo 'W: no sandbox' >&2; echo 'E: Unable to locate package small' >&2; exit 100",
        "E: Unable to locate package small; .*sudo apt-get update",
    ),
    "one that says nothing": (NPM, "exit 1", "it failed"),
    "one that fails halfway": (NPM, "echo half > small.tgz; exit 1", "it failed"),
    "one that leaves nothing": (NPM, "exit 0", "it failed"),
}


@pytest.mark.parametrize(("package", "script", "message"), FAILURES.values(), ids=FAILURES.keys())
def test_what_a_client_says_is_passed_on(client, space, package, script, message):
    client(package.client, script)
    with pytest.raises(ServiceError, match=message):
        fetch_package(package, space)


@pytest.mark.parametrize(("package", "help"), [(NPM, "Node.js"), (APT, "on Debian")])
def test_without_the_client_it_is_said_how_to_get_it(no_clients, space, package, help):
    with pytest.raises(ServiceError, match=f"{package.client} is not installed: .*{help}"):
        fetch_package(package, space)

"""How a service is reached, with TLS and without, and what is loaded for it."""

import datetime
import ipaddress
import logging
import os
import subprocess
import sys
import threading
import warnings

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

import ostraka
from ostraka.client import connection
from ostraka.client.connection import Patience
from ostraka.client.events import (
    AGAIN_S,
    Event,
    Reconnecting,
    Report,
    Resending,
    Uploading,
    Waiting,
)
from ostraka.errors import ConfigError, ServiceError


def test_importing_the_package_does_not_load_the_network():
    probe = (
        "import sys, ostraka; light = 'grpc' not in sys.modules;"
        "from ostraka import Client; print(light, 'grpc' in sys.modules, Client.__name__)"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True", "Client"]


def test_the_package_has_no_names_that_it_has_not():
    assert "Client" in ostraka.__all__
    with pytest.raises(AttributeError, match="no attribute 'Clients'"):
        ostraka.Clients  # type: ignore[attr-defined]  # noqa: B018


def self_signed():
    """A key and a certificate for 127.0.0.1, both PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "a test")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return private, certificate.public_bytes(Encoding.PEM)


def test_tls_with_the_certificate_that_vouches_for_the_service(serve, connect, folder):
    private, certificate = self_signed()
    (folder / "ca.pem").write_bytes(certificate)
    (folder / "tls.key").write_bytes(private)
    secure = serve((folder / "ca.pem", folder / "tls.key"))
    (folder / "other.pem").write_bytes(self_signed()[1])
    with connect(address=secure.address, tls_ca=folder / "ca.pem") as client:
        assert client.fetch().round == 1
        assert client.submit([1.0] * 17).accepted
    for tls_ca in (None, folder / "other.pem"):
        with (
            connect(address=secure.address, tls_ca=tls_ca, timeout=0.5) as client,
            pytest.raises(ServiceError, match=r"within 0\.5 s"),
        ):
            client.fetch()


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"address": "localhost"}, ConfigError, "HOST:PORT"),
        ({"address": "localhost:99999"}, ConfigError, "a port from 1 to 65535"),
        ({"tls_ca": "none.pem"}, ConfigError, r"none\.pem: No such file"),
        ({"policy": "none.toml"}, ConfigError, r"none\.toml: No such file"),
        ({"key": "none.key"}, ConfigError, r"none\.key"),
    ],
)
def test_a_wrong_argument_is_named(options, error, match, connect):
    with pytest.raises(error, match=match), connect(**options) as client:
        client.fetch()


UPDATE = [1.0] * 17


def test_a_connection_and_what_is_known_last_from_round_to_round(alice, service):
    alice.fetch()
    assert alice.submit(UPDATE).accepted
    service.calls.clear()
    alice.fetch()
    assert alice.submit(UPDATE).accepted
    assert service.greetings == 1
    behind_others = ["AwaitOutcome"] * 2  # as part of the calls before them
    calls = ["Introduce", "Upload", "Confirm", *behind_others]
    assert sorted(service.calls) == sorted(calls)


def test_a_connection_ends_before_a_fork(alice, service):
    alice.fetch()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
        child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    assert alice.submit(UPDATE).accepted
    assert service.greetings == 2


def test_a_process_may_fork_while_clients_are_made():
    many, done = [connection.Resting() for _ in range(300)], threading.Event()

    def make():
        while not done.is_set():
            many[300:] = [connection.Resting() for _ in range(1000)]

    other, interval = threading.Thread(target=make), sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    other.start()
    try:
        for _ in range(200):
            connection._before_fork()
    finally:
        done.set()
        other.join()
        sys.setswitchinterval(interval)


def test_a_connection_that_has_rested_for_long_is_made_anew(alice, service, monkeypatch):
    alice.fetch()
    monkeypatch.setattr(connection, "IDLE_S", 0.0)
    assert alice.submit(UPDATE).accepted
    assert service.greetings == 2


def test_a_connection_ends_with_a_call_that_fails(alice, service):
    service.failures["Introduce"] = [(grpc.StatusCode.INVALID_ARGUMENT, "no")]
    with pytest.raises(ServiceError):
        alice.fetch()
    alice.fetch()
    assert service.greetings == 2


def test_a_service_that_has_restarted_meanwhile_is_greeted_again(alice, service, host):
    alice.fetch()
    host.down()
    host.up()
    assert alice.submit(UPDATE).accepted
    assert alice.fetch().round == 2


def test_to_be_asked_for_a_greeting_is_no_failure(alice, service, told):
    alice.fetch()
    service.failures["Introduce"] = [(grpc.StatusCode.UNAUTHENTICATED, "greet again")]
    assert alice.fetch().round == 1
    assert service.greetings == 2
    assert not any(isinstance(each, Reconnecting) for each in told)


def test_a_service_that_is_never_content_with_a_greeting_is_told_of(connect, service, told, host):
    service.failures["Introduce"] = [(grpc.StatusCode.UNAUTHENTICATED, "greet again")] * 1000
    with connect(timeout=0.5) as client, pytest.raises(ServiceError, match=r"within 0\.5 s"):
        client.fetch()
    assert Reconnecting(1, "greet again", host.address) in told


def test_patience_is_what_is_left_of_it():
    assert Patience(None).limit(60) == 60
    assert not Patience(None).over
    assert 0 < Patience(100).limit(60) <= 60
    assert 0 < Patience(10).limit(60) <= 10
    spent = Patience(0)
    assert spent.over
    assert spent.limit(60) == 0
    spent.sleep(1000)


def test_what_is_waited_for_is_logged_unless_somebody_else_is_told(connect, service, caplog, host):
    caplog.set_level(logging.INFO, "ostraka.client")
    service.failures["Introduce"] = [(grpc.StatusCode.UNAVAILABLE, "stopping")] * 3
    with connect(on_event=None) as client:
        client.fetch()
    assert [(each.levelname, each.getMessage()) for each in caplog.records] == [
        ("INFO", "waiting for an open round"),
        ("WARNING", f"attempt 1 to reach {host.address} failed (stopping): trying again"),
        ("INFO", "waiting for the chain of receipts"),
    ]
    caplog.clear()
    with connect() as client:
        client.fetch()
    assert caplog.records == []


def test_the_same_is_logged_again_after_a_while_only(caplog):
    caplog.set_level(logging.INFO, "ostraka.client")
    times = [0.0] * 5 + [1.0] * 2 + [AGAIN_S - 1] * 2 + [AGAIN_S] * 4
    clock = iter(times)
    report = Report(clock=lambda: next(clock))
    seen: list[Event] = [
        Waiting("a"),
        Waiting("b"),
        Resending(1),
        Reconnecting(1, "x"),
        Uploading(1, 2, 3),
    ]
    for event in seen:
        report(event)
    assert [each.getMessage() for each in caplog.records] == list(map(str, seen))
    levels = [each.levelname for each in caplog.records]
    assert levels == ["INFO", "INFO", "WARNING", "WARNING", "INFO"]
    caplog.clear()
    for _ in range(3):
        report(Waiting("b"))
        report(Reconnecting(2, "x"))
    assert len(caplog.records) == 2
    report(Reconnecting(3, "y"))
    assert caplog.records[-1].getMessage() == "attempt 3 failed (y): trying again"
    report(Reconnecting(4, "z", "fl:7420"))
    said = "attempt 4 to reach fl:7420 failed (z): trying again"
    assert caplog.records[-1].getMessage() == said

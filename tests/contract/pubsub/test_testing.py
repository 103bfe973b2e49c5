"""`penstock.testing`: the emulator as users of the package get it in their tests."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest
from google.cloud import pubsub_v1

from penstock._core.clock import ManualClock
from penstock.errors import ConnectError
from penstock.testing import PubSubEmulator, SubscriptionCounters, TopicCounters, pubsub_emulator
from tests.support.pubsub_service import Service
from tests.support.waiting import wait_for

HOST = "PUBSUB_EMULATOR_HOST"


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def create_topic(address: str, name: str) -> None:
    """Create a topic on one emulator, whatever the environment says."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(HOST, address)
        with pubsub_v1.PublisherClient() as client:
            client.create_topic(name=f"projects/p/topics/{name}")


def test_counters_tell_what_happened(service: Service) -> None:
    """Published, delivered, acked and outstanding are counted per subscription."""
    topic, subscription = service.pair()
    assert service.emulator.counters(subscription) == SubscriptionCounters(
        **dict.fromkeys(SubscriptionCounters.__dataclass_fields__, 0)
    )
    service.publish(topic, b"a", b"b", b"c", b"d")
    received = service.pull(subscription, 3)
    service.ack(subscription, received[:1])
    service.nack(subscription, received[1:2])
    service.pull(subscription, 1)
    stream = service.stream(subscription)
    stream.wait_received(1)
    assert service.emulator.counters(subscription) == SubscriptionCounters(
        published=4,
        delivered=5,
        redelivered=1,
        acked=1,
        nacked=1,
        expired=0,
        dead_lettered=0,
        outstanding=3,
        unacked=3,
        streams=1,
    )
    counted = service.emulator.topic_counters(topic)
    assert (counted.published, counted.stored) == (4, 4)
    assert 4 <= counted.published_bytes <= 40
    assert isinstance(counted, TopicCounters)
    assert service.emulator.calls()["Pull"] == 2


def test_counters_of_the_unknown_are_an_error(service: Service) -> None:
    """A name that does not exist is NOT_FOUND and not zero."""
    for call in (service.emulator.counters, service.emulator.topic_counters):
        with pytest.raises(Exception, match="Resource not found"):
            call("projects/contract/topics/none")


@pytest.mark.parametrize("in_process", [False, True])
@pytest.mark.parametrize("before", [None, "other.example:1"])
def test_environment_points_to_the_emulator_and_is_restored(
    monkeypatch: pytest.MonkeyPatch, in_process: bool, before: str | None
) -> None:
    """PUBSUB_EMULATOR_HOST is set inside the block only, and as before after it."""
    if before is None:
        monkeypatch.delenv(HOST, raising=False)
    else:
        monkeypatch.setenv(HOST, before)
    with pubsub_emulator(in_process=in_process) as emulator:
        assert os.environ[HOST] == emulator.address
        assert (emulator.pid() == os.getpid()) is in_process
        create_topic(emulator.address, "orders")
        assert emulator.topic_counters("projects/p/topics/orders").published == 0
    assert os.environ.get(HOST) == before


@pytest.mark.parametrize("in_process", [False, True])
def test_emulator_ends_when_the_body_raises(in_process: bool) -> None:
    """An error in the block passes through; process, port and environment are clean after it."""
    before = os.environ.get(HOST)
    pid, address = 0, ""

    def fail() -> None:
        nonlocal pid, address
        with pubsub_emulator(in_process=in_process) as emulator:
            pid, address = emulator.pid(), emulator.address
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert os.environ.get(HOST) == before
    if not in_process:
        assert not is_running(pid)
    with socket.socket() as probe:
        host, _, port = address.rpartition(":")
        assert probe.connect_ex((host, int(port))) != 0


def test_emulator_does_not_outlive_a_killed_parent() -> None:
    """When the test's process dies by SIGKILL the emulator's process ends by itself."""
    program = """
        import sys
        from penstock.testing import pubsub_emulator

        with pubsub_emulator() as emulator:
            print(emulator.pid(), flush=True)
            sys.stdin.read()
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert is_running(pid)
        parent.send_signal(signal.SIGKILL)
    wait_for(lambda: not is_running(pid))


def test_interrupt_of_the_terminal_does_not_end_the_emulator() -> None:
    """Ctrl-C reaches the child as well; it stays for the parent's clean-up, and ends after it."""
    with pubsub_emulator() as emulator:
        pid = emulator.pid()
        os.kill(pid, signal.SIGINT)
        create_topic(emulator.address, "orders")
    assert not is_running(pid)


@pytest.mark.parametrize("in_process", [False, True])
def test_port_in_use_is_a_clear_error(in_process: bool) -> None:
    """A port that another program has is an error that says so, and how to go on."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with (
            pytest.raises(ConnectError, match=rf"127\.0\.0\.1:{port}.*[Pp]ort") as caught,
            pubsub_emulator(port=port, in_process=in_process),
        ):
            pass
    assert "another" in str(caught.value)
    assert os.environ.get(HOST) is None


def test_port_can_be_chosen() -> None:
    """The emulator listens where it is told to, and again after it was stopped."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for _ in range(2):
        with pubsub_emulator(port=port, in_process=True) as emulator:
            assert emulator.address == f"127.0.0.1:{port}"
            create_topic(emulator.address, "orders")


def test_emulator_listens_on_ipv6_too() -> None:
    """An IPv6 address is put into brackets, as clients want it."""
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")
    with pubsub_emulator(host="::1", in_process=True) as emulator:
        assert emulator.address.startswith("[::1]:")
        create_topic(emulator.address, "orders")


def test_two_emulators_know_nothing_of_each_other() -> None:
    """Emulators side by side have their own topics, and the environment unwinds in order."""
    with pubsub_emulator(in_process=True) as outer:
        with pubsub_emulator() as inner:
            assert os.environ[HOST] == inner.address != outer.address
            create_topic(inner.address, "of-inner")
            create_topic(outer.address, "of-outer")
            with pytest.raises(Exception, match="not found"):
                inner.topic_counters("projects/p/topics/of-outer")
            inner.topic_counters("projects/p/topics/of-inner")
        assert os.environ[HOST] == outer.address
        outer.topic_counters("projects/p/topics/of-outer")


def test_clock_of_ones_own_needs_the_same_process() -> None:
    """A clock cannot be given to another process, and that is said at once."""
    with pytest.raises(ValueError, match="in_process"), pubsub_emulator(clock=ManualClock()):
        pass


def test_emulator_of_another_process_is_reached_by_its_address() -> None:
    """PubSubEmulator(address) works wherever the address is known; closing it ends nothing."""
    with pubsub_emulator() as emulator:
        other = PubSubEmulator(emulator.address)
        assert other.pid() == emulator.pid() != os.getpid()
        other.close()
        assert emulator.calls() == {}


def test_fixture_gives_an_emulator_to_a_users_test(tmp_path: Path) -> None:
    """The pytest plugin's fixture runs an emulator for one test and ends it after it."""
    (tmp_path / "test_user.py").write_text(
        textwrap.dedent("""
            import os
            from google.cloud import pubsub_v1

            seen = []

            def check(emulator):
                with pubsub_v1.PublisherClient() as client:
                    client.create_topic(name="projects/p/topics/orders")
                assert os.environ["PUBSUB_EMULATOR_HOST"] == emulator.address
                assert emulator.topic_counters("projects/p/topics/orders").published == 0
                assert emulator.address not in seen
                seen.append(emulator.address)

            def test_first(pubsub_emulator):
                check(pubsub_emulator)

            def test_second(pubsub_emulator):
                check(pubsub_emulator)

            def test_without():
                assert "PUBSUB_EMULATOR_HOST" not in os.environ
        """)
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "penstock.pytest_plugin"]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    environment.pop("PYTEST_ADDOPTS", None)
    done = subprocess.run(
        [*command, "-o", "addopts=", "--rootdir", str(tmp_path), str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert "3 passed" in done.stdout, done.stdout + done.stderr

"""The source's measurements: in Spark's progress, and for Prometheus."""

from __future__ import annotations

import re
import urllib.error
import urllib.request

import pytest

from penstock._core.metrics import MetricsServer
from penstock.pubsub.agent.protocol import Status
from penstock.pubsub.source.agents import Overview
from penstock.pubsub.source.metrics import METRICS, measure, render_metrics

OVERVIEW = Overview(Status(received=7, oldest_unacked_seconds=1.23456), 2, 4, 0, 3, 1)


def test_every_measurement_has_a_name_and_a_meaning() -> None:
    assert set(measure(OVERVIEW)) == set(METRICS)


def test_measurements_are_what_the_agents_told() -> None:
    values = measure(OVERVIEW)
    assert (values["agents"], values["received"], values["oldestUnackedSeconds"]) == (2, 7, 1.235)
    assert (values["openDeliveries"], values["settlingDeliveries"]) == (3, 1)


def test_the_text_is_what_prometheus_reads() -> None:
    text = render_metrics(measure(OVERVIEW), "projects/p/subscriptions/s")
    line = r'(# (HELP|TYPE) \w+ .+|penstock_pubsub_\w+\{subscription="[^"]+"\} [0-9.]+)'
    assert all(re.fullmatch(line, one) for one in text.splitlines())
    assert 'penstock_pubsub_received_total{subscription="projects/p/subscriptions/s"} 7' in text


def test_counters_end_in_total() -> None:
    for name, kind, _ in METRICS.values():
        assert name.endswith("_total") == (kind == "counter")


def test_the_port_answers_metrics_and_nothing_else() -> None:
    server = MetricsServer(0, lambda: "text\n")
    try:
        base = f"http://127.0.0.1:{server.port}"
        with urllib.request.urlopen(f"{base}/metrics") as answer:  # noqa: S310 - our own
            assert answer.read() == b"text\n"
        with pytest.raises(urllib.error.HTTPError, match="404") as caught:
            urllib.request.urlopen(f"{base}/other")  # noqa: S310 - our own
        caught.value.close()
    finally:
        server.stop()

"""Measurements for Prometheus: their text, and the port that answers; runs on the driver."""

from __future__ import annotations

import http.server
import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

from penstock.errors import ConnectError

_LOG = logging.getLogger(__name__)
# Name without its prefix, kind, meaning.
Metric = tuple[str, str, str]


def render(
    prefix: str, metrics: Mapping[str, Metric], values: Mapping[str, Any], **labels: str
) -> str:
    """Write measurements in Prometheus' text format; those without a value are left out."""
    shown = ",".join(f'{name}="{value}"' for name, value in labels.items())
    lines = []
    for key, (name, kind, meaning) in metrics.items():
        if values.get(key) is None:
            continue
        full = f"{prefix}_{name}"
        lines += [
            f"# HELP {full} {meaning}",
            f"# TYPE {full} {kind}",
            f"{full}{{{shown}}} {values[key]}",
        ]
    return "\n".join(lines) + "\n"


def serve_metrics(port: int, text: Callable[[], str], subject: str) -> MetricsServer:
    """Answer GET /metrics for a query, named by what it reads.

    Raises:
        ConnectError: the port cannot be listened on.
    """
    try:
        server = MetricsServer(port, text)
    except OSError as exc:
        raise ConnectError(
            "METRICS_PORT",
            f"Port {port} of option 'metricsPort'",
            f"cannot be listened on ({exc.strerror})",
            "Choose another one; 0 takes a free one",
        ) from None
    _LOG.warning("metrics of %s on port %d", subject, server.port)
    return server


class MetricsServer:
    """Answers GET /metrics on the driver machine."""

    def __init__(self, port: int, text: Callable[[], str]) -> None:
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                is_known = self.path.split("?")[0] == "/metrics"
                body = text().encode() if is_known else b"see /metrics\n"
                self.send_response(200 if is_known else 404)
                self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - inherited
                pass

        self._server = http.server.ThreadingHTTPServer(("", port), Handler)
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="penstock-metrics", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Close the port."""
        self._server.shutdown()
        self._server.server_close()

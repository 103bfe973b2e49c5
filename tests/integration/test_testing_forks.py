"""A process that has used the emulator starts other programs by fork, as PySpark starts its JVM."""

from __future__ import annotations

import subprocess
import sys

# Without the setting of `penstock.testing` about one child in fifty dies before it is a program.
PROGRAM = """
import subprocess
from penstock.testing import pubsub_emulator
from google.cloud import pubsub_v1

with pubsub_emulator():
    client = pubsub_v1.PublisherClient()
    client.create_topic(name="projects/demo/topics/orders")
    for _ in range(300):
        client.get_topic(topic="projects/demo/topics/orders")
        # preexec_fn, as PySpark uses it, makes Python take fork() instead of vfork().
        subprocess.run(["true"], preexec_fn=lambda: None, check=True)
"""


def test_children_survive_the_fork() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr

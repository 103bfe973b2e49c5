"""The agent process: detaches, serves, and ends with its executor or its query.

Started by `launcher`. Reads its configuration from standard input, says `ready` on standard output
when tasks can fetch, and logs to standard error (a file in its directory).
"""

from __future__ import annotations

import os
import sys
from pathlib import Path


def _detach() -> None:
    """Leave the worker: it is reaped by whoever adopts it, never a zombie of Spark's daemon."""
    if os.fork():
        os._exit(0)


def main() -> None:
    """Run one agent to its end."""
    config_text = sys.stdin.read()
    _detach()
    # Threads and gRPC only after the fork.
    from penstock.pubsub.agent.agent import run_agent
    from penstock.pubsub.agent.config import AgentConfig

    def ready() -> None:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        # The launcher waits for the end of this pipe.
        with Path(os.devnull).open("w") as null:
            os.dup2(null.fileno(), 1)

    run_agent(AgentConfig.from_json(config_text), Path(sys.argv[1]), ready)
    # At once: what Flight does on its way out would remove the socket of an agent that was started
    # in our place.
    os._exit(0)


if __name__ == "__main__":
    main()

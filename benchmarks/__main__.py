"""Run all benchmarks, or those named on the command line: python -m benchmarks [name ...]."""

from __future__ import annotations

import subprocess
import sys

ALL = (
    "emulator",
    "wire",
    "sink",
    "source",
    "latency",
    "pgoutput",
    "snapshot",
    "transaction",
    "snowpipe",
)


def main() -> int:
    """Run each in a process of its own, so that none warms up another."""
    for name in sys.argv[1:] or ALL:
        if name not in ALL:
            print(f"no benchmark {name!r}; there are: {', '.join(ALL)}", file=sys.stderr)
            return 2
        print(f"== {name}", flush=True)
        done = subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], check=False)
        if done.returncode:
            return done.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())

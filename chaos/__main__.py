"""python -m chaos run | soak: see --help."""

from __future__ import annotations

import argparse
import json
import random
import signal
import sys
from pathlib import Path
from typing import Any

from chaos.run import Settings, run_chaos, say
from chaos.soak import SoakSettings, run_soak
from chaos.verdict import AT_LEAST_ONCE, MODES

_RUN = """\
Runs a streaming query on a local cluster while processes are killed and frozen, the service goes
away, and calls to it fail; then counts what has arrived. The sequence of actions is decided by the
seed alone. at-least-once passes if nothing is lost; exactly-once also if nothing came twice.

In exactly-once mode every second seed (the odd ones) has a subscription with exactly-once
delivery. Two faults are a breach of the service's own contract and are left out of that mode
unless --with-breaches is given: an acknowledgement that is confirmed and then forgotten
(lose_ack), and the same message twice in one response (duplicate). On a subscription without
exactly-once delivery the real service may also redeliver what was acknowledged; the emulator does
not do so by itself.
"""

_SOAK = """\
Runs a streaming query at a steady rate, undisturbed, and watches memory, open files, sockets and
threads of each process, and what is in the spool. Prints the medians of the first and of the last
quarter of the time, and draws everything.
"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m chaos", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser(
        "run", description=_RUN, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    run.add_argument("--mode", choices=MODES, default=AT_LEAST_ONCE)
    run.add_argument("--minutes", type=float, default=4.0)
    run.add_argument("--seed", type=int, help="repeats a sequence of actions; random without it")
    run.add_argument("--executors", type=int, default=2)
    run.add_argument("--rate", type=int, default=500, help="messages per second")
    run.add_argument("--with-breaches", action="store_true", help="see above")
    run.add_argument("--keep-logs", action="store_true", help="also if the run passes")
    run.add_argument("--json", type=Path, metavar="FILE", help="write the outcome there, too")
    soak = commands.add_parser(
        "soak", description=_SOAK, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    soak.add_argument("--mode", choices=MODES, default=AT_LEAST_ONCE)
    soak.add_argument("--minutes", type=float, default=10.0)
    soak.add_argument("--rate", type=int, default=1000, help="messages of 1 KB per second")
    soak.add_argument(
        "--executors", type=int, default=0, help="without: tasks run in the driver's JVM"
    )
    soak.add_argument("--plot", type=_svg_file, default=Path("soak.svg"), metavar="FILE.svg")
    return parser


def _svg_file(text: str) -> Path:
    path = Path(text)
    if path.suffix != ".svg":
        raise argparse.ArgumentTypeError("the plot is an SVG file: give a name that ends in .svg")
    return path


def _soak(arguments: argparse.Namespace) -> int:
    settings = SoakSettings(
        mode=arguments.mode,
        minutes=arguments.minutes,
        rate=arguments.rate,
        executors=arguments.executors,
    )
    return 0 if run_soak(settings, arguments.plot) else 1


def _run(arguments: argparse.Namespace) -> int:
    # At random if none is given; even and odd ones have different subscriptions.
    seed = random.SystemRandom().randrange(10**6) if arguments.seed is None else arguments.seed
    settings = Settings(
        mode=arguments.mode,
        minutes=arguments.minutes,
        seed=seed,
        executors=arguments.executors,
        rate=arguments.rate,
        with_breaches=arguments.with_breaches or arguments.mode == AT_LEAST_ONCE,
        is_kept=arguments.keep_logs,
    )
    say(f"seed {seed}")
    verdict, kept = run_chaos(settings)
    say(verdict.table())
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(verdict.to_json(), indent=1) + "\n")
    if kept is not None:
        say(f"logs: {kept}")
    return 0 if verdict.is_passed else 1


def _interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


def main() -> int:
    """Run what the command line asks for."""
    # However it is ended, nothing that it has started stays.
    signal.signal(signal.SIGTERM, _interrupt)
    arguments = _parser().parse_args()
    try:
        return _run(arguments) if arguments.command == "run" else _soak(arguments)
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())

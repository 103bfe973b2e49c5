"""The demo: shows what Penstock does, on this machine alone, and checks its own numbers.

`story` tells it, `changes` and `chain` the chapters on PostgreSQL and Snowflake, `show` draws it,
`spark` runs a Spark that keeps quiet. Needs the extra `all`; only the command line imports it.
"""

from penstock.demo.story import run_demo

__all__ = ["run_demo"]

"""A Snowflake of one process and one DuckDB: SQL for the connector, and Snowpipe Streaming.

SQL is fakesnow's, with what it lacks or gets wrong mended where Penstock needs it. The endpoints of
Snowpipe Streaming are ours, spoken to by the official SDK in its row mode. How it differs from the
service stands in docs/snowflake-emulator.md.
"""

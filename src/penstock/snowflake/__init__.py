"""Snowflake: the sink `format("snowpipe")` and what it needs."""

"""Snowflake: the Snowpipe Streaming sink and what applies change rows to tables."""

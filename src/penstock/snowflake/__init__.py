"""Snowflake: the sink `format("snowpipe")` and the merge of change streams."""

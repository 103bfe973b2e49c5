"""The one process per executor and query that owns Pub/Sub's streams, leases and ack ids."""

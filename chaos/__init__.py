"""Chaos and soak runs of the Pub/Sub source on this machine: what gets lost, and what grows."""

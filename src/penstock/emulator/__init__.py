"""Embedded stand-ins for the services Penstock talks to, for tests, demos and development."""

"""Internals shared by all formats."""

"""Benchmarks: each prints rates and ratios of one run, so that the machine's noise cancels."""

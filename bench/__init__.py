"""Benchmarks of the optimizer step: ``python -m bench.cpu`` and ``python -m bench.cuda``."""

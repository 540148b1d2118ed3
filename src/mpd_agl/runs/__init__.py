"""Runs: from a configuration to its parts, then start, resume and evaluate. The composition root of the package."""

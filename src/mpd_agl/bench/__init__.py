"""Contenders side by side: the same weights and inputs, one process each, alternating rounds; ratios only where the outputs agree."""

"""Contenders side by side on the same weights and inputs; a ratio is given only where their outputs agree."""

"""The loop and what surrounds it: losses, optimizers, checkpoints, run folders.

Knows no network and no data set; they arrive built.
"""

"""The paper and docs/evidence.md as commands: one file per table, figure or study, and the numbers the paper quotes."""

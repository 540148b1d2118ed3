"""The paper as commands: one file per table or figure, and the numbers that the paper quotes."""

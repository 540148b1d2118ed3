"""TensorBoard next to metrics.jsonl. A tracker that fails is dropped; the run continues."""

from collections.abc import Callable
from pathlib import Path
from typing import Any


class TensorBoard:
    """Scalars into `<run>/tensorboard`. Extra: `pip install mpd-agl[tensorboard]`."""

    def __init__(self, folder: Path, step: int, note: Callable[[str], None]) -> None:
        self._note = note
        self._writer: Any = None
        try:
            from torch.utils.tensorboard import SummaryWriter  # an optional dependency

            self._writer = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1 if step else None)
        except Exception as error:
            self._drop(error)

    def log(self, line: dict[str, Any]) -> None:
        """Take a line that metrics.jsonl gets."""
        try:
            for name, value in numbers(line).items() if self._writer else ():
                self._writer.add_scalar(f"{line['log']}/{name}", value, line["step"])
        except Exception as error:
            self._drop(error)

    def close(self) -> None:
        """Write what is left."""
        try:
            if self._writer:
                self._writer.close()
        except Exception as error:
            self._drop(error)

    def _drop(self, error: Exception) -> None:
        self._writer = None
        self._note(f"tensorboard is dropped, the run continues: {type(error).__name__}: {error}")


def numbers(line: dict[str, Any]) -> dict[str, float]:
    """The plain numbers of a line."""
    return {n: float(v) for n, v in line.items() if isinstance(v, int | float) and n != "step"}

"""A folder of runs that experiments share: each configuration is trained once, and continues if it was stopped."""

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mpd_agl.errors import InputError
from mpd_agl.models import list_pretrained, pretrained_card
from mpd_agl.options import flatten
from mpd_agl.records import RunRecord, TornRecord, read_record
from mpd_agl.train.config import FREE_ON_RESUME, RunConfig
from mpd_agl.train.console import time_left
from mpd_agl.train.observe import Display
from mpd_agl.train.resolve import merge, nest, resolve, rule_facts
from mpd_agl.train.runfolder import MARK, in_use


def chance_level(record: RunRecord) -> float:
    """The accuracy of a random answer on a run's data."""
    return 1 / len(record.data["classes"])


def run_name(config: RunConfig) -> str:
    """One readable name per configuration. Fields at their defaults do not count: new fields rename no old runs.

    >>> run_name(RunConfig(seed=1)), run_name(RunConfig(seed=1)) == run_name(RunConfig(seed=2))
    ('cifar10-resnet19-t2-mpd-agl-s1-a4bbadc1', False)
    """
    flat = flatten(config.model_dump(mode="json", exclude_defaults=True))
    kept = {name: value for name, value in sorted(flat.items()) if _counts(name, value)}
    digest = hashlib.sha256(json.dumps(kept).encode()).hexdigest()[:8]
    kind = "ann" if config.model.ann else config.method
    return f"{config.data.name}-{config.model.name}-t{config.model.num_steps}-{kind}-s{config.seed}-{digest}"


@dataclass(frozen=True)
class Pool:
    """The folder."""

    folder: Path

    def path(self, config: RunConfig) -> Path:
        """Where a configuration's run is or will be."""
        return self.folder / run_name(config)

    def record(self, config: RunConfig) -> RunRecord | None:
        """Its run's record, where there is one; refuses a folder that holds another run than its name says."""
        path = self.path(config)
        if not (path / "record.json").is_file():
            return None
        try:
            record = read_record(path / "record.json")
        except TornRecord:  # its run's resume writes it again
            return None
        if _counted(resolve(record.config)) != _counted(config):
            raise InputError(
                f"{path} holds a run of another configuration. Move it away, or choose another --runs-dir."
            )
        now, then = rule_facts(config).get("rule"), record.network.get("rule")
        if now != then:
            raise InputError(
                f"{path} holds a run of {config.method} with other constants "
                f"({_listed(then)}; today's: {_listed(now)}). Move it away, or choose another --runs-dir."
            )
        name = config.model.weights
        if (
            name in list_pretrained()
            and record.network.get("weights_sha256") != pretrained_card(name).weights["sha256"]
        ):
            raise InputError(
                f"{path} holds a run that began with another version of the weights {name!r}. "
                "Move it away, or choose another --runs-dir."
            )
        return record

    def finished(self, config: RunConfig) -> bool:
        """Whether its run is done."""
        record = self.record(config)
        return record is not None and record.status == "finished"

    def diverged(self, config: RunConfig) -> bool:
        """Whether its run ended because a loss, a gradient or a current was not finite: it would end so again."""
        record = self.record(config)
        return record is not None and record.failure_code == "not-finite"

    def ended(self, config: RunConfig) -> bool:
        """Finished or diverged: nothing is left to train."""
        return self.finished(config) or self.diverged(config)

    def begun(self, config: RunConfig) -> bool:
        """Whether there is something to continue."""
        return (self.path(config) / MARK).is_file()

    def needed_by(self, config: RunConfig) -> dict[str, RunConfig]:
        """The runs that must be finished before this one, by the field that names their folders.

        A teacher is the same run as an ANN; adversarial fine-tuning starts from the same run without the adversary.
        """
        plain = merge(config.model_dump(), {"loss": {"name": "ce"}})
        if config.loss.name in ("ltl", "distill") and not getattr(config.loss, "teacher", ""):
            return {"loss.teacher": resolve(merge(plain, {"model": {"ann": True}}))}
        if config.loss.name == "robust" and not config.model.weights:
            return {"model.weights": resolve(plain)}
        return {}

    def train(self, config: RunConfig, display: Display) -> None:
        """Start or continue a run; what it builds on is trained first."""
        from mpd_agl.train.training import resume, start

        path = self.path(config)
        for field, first in self.needed_by(config).items():
            if not self.finished(first):
                self.train(first, display)
            table = merge(config.model_dump(mode="json"), nest({field: str(self.path(first))}))
            config = resolve(table)
        assert self.path(config) == path  # folders do not count
        if self.begun(config):
            free = {k: v for k, v in flatten(config.model_dump()).items() if k in FREE_ON_RESUME}
            resume(self.path(config), free, display)
        else:
            start(config, self.path(config), display)

    def train_all(
        self,
        configs: Sequence[RunConfig],
        display: Callable[[], Display],
        say: Callable[[str], None],
        *,
        partial: bool = False,
    ) -> int:
        """Train what is not finished, each once.

        A run that fails does not stop the others, but then nothing is shown. `partial`: a run that diverges counts as
        ended, and a run that another process trains is left to it.
        """
        wanted = {run_name(c): c for c in configs}
        done = self.ended if partial else self.finished
        missing = [c for c in wanted.values() if not done(c)]
        failed: list[str] = []
        began, passed = time.monotonic(), 0
        for i, config in enumerate(missing, 1):
            if partial and (in_use(self.path(config)) or done(config)):
                say(f"run {i} of {len(missing)} is another process's: {run_name(config)}")
                passed += 1
                continue
            what = "continues" if self.begun(config) else "starts"
            say(f"run {i} of {len(missing)} {what}: {run_name(config)}")
            try:
                self.train(config, display())
            except InputError as error:
                if partial and self.diverged(config):
                    say(f"run {i} of {len(missing)} counts as chance level: {error}")
                    continue
                if not self.begun(config):  # no data, say: it would hit the others as well
                    raise InputError(f"{run_name(config)} cannot start: {error}") from None
                failed.append(f"{run_name(config)}: {error}")
                say(f"run {i} of {len(missing)} failed: {error}")
            if len(missing) > 1:
                say(time_left(i - passed, len(missing) - passed, time.monotonic() - began))
        if failed:
            raise InputError(
                f"{len(failed)} of {len(wanted)} runs failed, so nothing is shown; the same command tries them again. "
                f"The first: {failed[0]}"
            )
        return len(missing)


def _listed(constants: Mapping[str, float] | None) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in (constants or {}).items()) or "none named"


def _counted(config: RunConfig) -> dict[str, object]:
    return {k: v for k, v in flatten(config.model_dump(mode="json")).items() if _counts(k, v)}


def _counts(field: str, value: object) -> bool:
    """Whether a field tells runs apart. A folder does not, the name of a bundled network does."""
    return field not in FREE_ON_RESUME or (field == "model.weights" and value in list_pretrained())

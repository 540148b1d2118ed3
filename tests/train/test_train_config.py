"""Configurations: all mistakes at once, near misses, presets as the paper says, files that come back."""

import json
import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpd_agl.cli.options import parse
from mpd_agl.train.config import FREE_ON_RESUME
from mpd_agl.train.presets import list_presets, read_preset
from mpd_agl.train.resolve import (
    check_unchanged,
    fields_of,
    flatten,
    merge,
    nest,
    read_toml,
    resolve,
    resolve_recorded,
    to_toml,
)
from tests.refused import refused

ROOT = Path(__file__).parents[2]
PAPER = {
    "cifar10-resnet19": ("resnet19", "cifar10", 2),
    "cifar100-resnet19": ("resnet19", "cifar100", 2),
    "cifar10dvs-vggsnn": ("vggsnn", "cifar10dvs", 10),
    "cifar10dvs-vggsnn-tet": ("vggsnn", "cifar10dvs", 10),
    "tinyimagenet-vgg13": ("vgg13", "tinyimagenet", 4),
}


@pytest.mark.parametrize("name", list_presets())
def test_a_preset_is_complete_and_comes_back_from_toml(name: str) -> None:
    config = resolve(read_preset(name))
    assert resolve(tomllib.loads(to_toml(config))) == config
    assert list_presets()[name]


@pytest.mark.parametrize("name", PAPER)
def test_the_papers_recipes(name: str) -> None:
    c = resolve(read_preset(name))
    dvs, adam = c.data.name == "cifar10dvs", name.endswith("tet")
    assert (c.model.name, c.data.name, c.model.num_steps) == PAPER[name]
    assert (c.method, c.model.width_mult, c.model.v_th, c.model.tau) == ("mpd-agl", 1.0, 0.5, 0.2)
    assert (c.train.epochs, c.train.batch_size, c.optim.schedule) == (150, 50 if dvs else 100, "cosine")
    assert (c.optim.name, c.optim.lr) == (("adam", 1e-3) if adam else ("sgd", 0.1))
    assert c.loss.model_dump() == {
        **({"name": "tet", "tet_lambda": 1e-3, "tet_target": 1.0} if adam else {"name": "ce"}),
        "label_smoothing": 0.0,
    }
    assert c.optim.weight_decay == (0.0 if adam else 1e-4)
    assert c.optim.decay_on == "all"
    policy = "imagenet" if c.data.name == "tinyimagenet" else "cifar"
    assert c.data.augment == (("flip", "roll=5") if dvs else ("crop=4", "flip", f"autoaugment={policy}"))
    if dvs:
        assert (c.data.frame_size, c.data.split_rule) == (48, "per-class-90-10")


def test_all_mistakes_in_one_message() -> None:
    table = {
        "method": "mpdagl",
        "colour": 1,
        "model": {"name": "resnet-19", "nmu_steps": 2, "tau": 1.5},
        "optim": {"lr": 0, "name": "sdg"},
        "train": {"epochs": "many", "batch_size": 1},
        "data": {"name": "cifar"},
        "loss": {"name": "tett"},
    }
    mistakes = ["'mpd-agl'", "'resnet19'", "'cifar10'", "'tet'", "colour", "model.num_steps", "got 1.5", "--optim.lr"]
    mistakes += ["'sgd'", "got 'many'", "train.batch_size", "unknown option --x."]
    with refused("bad-config", "12 mistakes", *mistakes):
        resolve(table, given={"optim.lr"}, mistakes=["unknown option --x."])


@pytest.mark.parametrize(
    ("table", "values"),
    [
        ({"optim": {"lr": float("nan")}}, ("optim.lr", "nan")),
        ({"data": {"augment": ["crob=4"]}}, ("data.augment", "crob")),
        ({"method": "deeptage", "model": {"surrogate": "triangular"}}, ("'arctan-peak'", "'triangular'")),
        ({"method": "s2nn", "model": {"num_steps": 2}}, ("s2nn", "--model.num_steps 1")),
        ({"train": {"epochs": 3}, "optim": {"warmup_epochs": 3}}, ("optim.warmup_epochs", "3 of 3")),
        ({"model": 3}, ("model", "3")),
        ({"model": {"depth": 3}}, ("model.depth", "plain", "statten", "'resnet19'")),
        ({"model": {"kappa": 2}}, ("model.kappa", "psg", "stbp-tdbn", "'mpd-agl'")),
        ({"loss": {"tet_lambda": 0.1}}, ("loss.tet_lambda", "tet", "'ce'")),
        ],
)  # fmt: skip
def test_single_mistakes_are_one_sentence(table: dict[str, object], values: tuple[str, ...]) -> None:
    with refused("bad-config", *values):
        resolve(table)


def test_another_entry_takes_no_options_of_the_old_one() -> None:
    tet = read_preset("cifar10dvs-vggsnn-tet")
    changed = resolve(merge(tet, {"loss": {"name": "ce"}, "data": {"name": "mnist5k"}}))
    assert set(changed.loss.model_dump()) == {"name", "label_smoothing"}
    assert "frame_size" not in changed.data.model_dump()
    assert resolve(merge(tet, {"loss": {"name": "tet"}})).loss.model_dump()["tet_lambda"] == 1e-3
    start = {"method": "psg", "model": {"kappa": 2.0}}
    assert resolve(merge(start, {"method": "asgl", "model": {"kappa": 3.0}})).model.model_dump()["kappa"] == 3.0
    with refused("bad-config", "model.kappa"):
        resolve(merge(start, {"method": "lsg", "model": {"kappa": 3.0}}))


def test_a_configuration_of_0_2_is_read_without_the_fields_that_are_no_more() -> None:
    record = json.loads((ROOT / "docs/results/ann-narrow.json").read_text())
    assert record["config"]["model"]["gamma_start"] == 1.0
    config = resolve_recorded(record["config"])
    assert (config.model.name, config.model.ann, config.data.name) == ("resnet19", True, "cifar10")
    with refused("bad-config", "gamma_start"):
        resolve(record["config"])


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.one_of(st.text(max_size=10), st.sampled_from([f"--{f}" for f in fields_of()] + ["--preset", "--json", "="])),
        max_size=8,
    )
)
def test_any_command_line_is_parsed(argv: list[str]) -> None:
    options = parse(argv)
    assert all(isinstance(m, str) for m in options.mistakes)


def test_values_from_the_command_line_take_their_types() -> None:
    argv = "--model.width_mult 0.125 --optim.lr=5e-2 --method lsg --model.num-steps 4 --train.no-deterministic"
    argv += " --no-optim.nesterov --model.ann true --data.augment crop=2,flip"
    o = parse(argv.split())
    assert not o.mistakes
    c = resolve(nest(o.overrides), given=o.overrides)
    assert (c.model.width_mult, c.optim.lr, c.method, c.model.num_steps) == (0.125, 0.05, "lsg", 4)
    assert (c.train.deterministic, c.model.ann, c.data.augment) == (False, True, ("crop=2", "flip"))


def test_mistakes_on_the_command_line_are_collected() -> None:
    argv = "word --lr 3 --seed --preset a b --dry-run yes --allow-partial --zzz --optim.lr -1"
    o = parse(argv.split())
    values = ("'word'", "--optim.lr?", "--seed", "a b", "'yes'", "--data.allow_partial?", "--zzz")
    assert [value in said for value, said in zip(values, o.mistakes, strict=True)] == [True] * 7
    assert o.overrides == {"optim.lr": "-1"}


def test_later_tables_win_field_by_field() -> None:
    merged = merge({"seed": 1, "optim": {"lr": 1, "momentum": 2}}, {"optim": {"lr": 3}})
    assert merged == {"seed": 1, "optim": {"lr": 3, "momentum": 2}}
    assert nest(flatten(merged)) == merged


def test_files_that_are_none(tmp_path: Path) -> None:
    with refused("no-file", tmp_path / "none.toml"):
        read_toml(tmp_path / "none.toml")
    for content, line in ((b"seed = = 3", "line 1"), (b"\xff\xfe", "utf-8")):
        (tmp_path / "a.toml").write_bytes(content)
        with refused("bad-toml", tmp_path / "a.toml", line):
            read_toml(tmp_path / "a.toml")


@pytest.mark.parametrize("text", ['a"b\\c', "tab\t", "line\nbreak", "ünï", "\x7f\x00", "'"])
def test_any_text_survives_toml(text: str) -> None:
    config = resolve({"data": {"data_dir": text}})
    assert tomllib.loads(to_toml(config))["data"]["data_dir"] == text


def test_what_may_change_on_resume_exists_and_the_rest_may_not() -> None:
    assert set(FREE_ON_RESUME) <= set(fields_of())
    check_unchanged(resolve({}), resolve({"train": {"workers": 0}}))
    with refused("changed-config", 'method was "mpd-agl", got "lsg"'):
        check_unchanged(resolve({}), resolve({"method": "lsg"}))

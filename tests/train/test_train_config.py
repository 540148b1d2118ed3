"""Configurations: all mistakes at once, near misses, presets as the paper says, files that come back."""

import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpd_agl.cli.options import FLAGS, VALUES, parse
from mpd_agl.cli.trainhelp import help_text
from mpd_agl.errors import InputError
from mpd_agl.train.config import FREE_ON_RESUME, RunConfig
from mpd_agl.train.resolve import (
    check_unchanged,
    fields_of,
    flatten,
    list_presets,
    merge,
    nest,
    read_preset,
    read_toml,
    resolve,
    to_toml,
)

PAPER = {
    "cifar10-resnet19-t2": ("resnet19", "cifar10", 2),
    "cifar10-resnet19-t4": ("resnet19", "cifar10", 4),
    "cifar10-resnet19-t6": ("resnet19", "cifar10", 6),
    "cifar100-resnet19-t2": ("resnet19", "cifar100", 2),
    "cifar100-resnet19-t4": ("resnet19", "cifar100", 4),
    "cifar100-resnet19-t6": ("resnet19", "cifar100", 6),
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
    assert (c.loss.name, c.loss.tet_lambda) == ("tet" if adam else "ce", 1e-3)
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
    }
    with pytest.raises(InputError) as error:
        resolve(table, given={"optim.lr"}, mistakes=["unknown option --x."])
    text = str(error.value)
    assert text.startswith("11 mistakes in the configuration:\n")
    for words in (
        "unknown option --x.",
        "method: unknown method 'mpdagl'. Did you mean 'mpd-agl'",
        "unknown field colour",
        "model.name: unknown model 'resnet-19'. Did you mean 'resnet19'",
        "unknown field model.nmu_steps. Did you mean model.num_steps?",
        "model.tau must be less than 1, got 1.5. Its default is 0.2.",
        "--optim.lr must be greater than 0, got 0. Its default is 0.1.",
        "optim.name must be one of sgd, adam, adamw, got 'sdg'. Did you mean 'sgd'?",
        "train.epochs must be integer, got 'many'",
        "train.batch_size must be greater than or equal to 2, got 1",
        "data.name: unknown data set 'cifar'. Did you mean 'cifar10'",
    ):
        assert words in text, words


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"optim": {"lr": -1}}, "optim.lr must be greater than 0, got -1"),
        ({"optim": {"lr": float("nan")}}, "optim.lr must be "),
        ({"optim": {"lr": float("inf")}}, "optim.lr must be "),
        ({"data": {"augment": ["crob=4"]}}, "data.augment: .*crob"),
        ({"method": "deeptage", "model": {"surrogate": "triangular"}}, "has its own surrogate"),
        ({"train": {"epochs": 3}, "optim": {"warmup_epochs": 3}}, "must be less than train.epochs"),
        ({"model": 3}, "model must be"),
        ({"seed": -1}, "seed must be"),
        ({"lr": 0.1}, "unknown field lr. Did you mean optim.lr?"),
    ],
)
def test_single_mistakes_are_one_sentence(table: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words) as error:
        resolve(table)
    assert "\n" not in str(error.value)


VALUES_OF_ANY_KIND = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8),
    st.lists(st.text(max_size=4), max_size=3), st.dictionaries(st.text(max_size=4), st.integers(), max_size=2),
    st.sampled_from(["mpd-agl", "cnn8", "crop=4", "none", "true", "1e9"]),
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(
    st.dictionaries(st.sampled_from([*fields_of(), "model", "optim", "x", "optim.x"]), VALUES_OF_ANY_KIND, max_size=6)
)
def test_any_values_are_a_configuration_or_a_sentence(flat: dict[str, object]) -> None:
    try:
        config = resolve(merge(read_preset("demo"), nest(flat)), given=flat)
    except InputError:
        return
    assert resolve(tomllib.loads(to_toml(config))) == config


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
    o = parse(
        [
            "word",
            "--optim.lrr",
            "1",
            "--lr",
            "3",
            "--seed",
            "--preset",
            "a",
            "b",
            "--dry-run",
            "yes",
            "--allow-partial",
            "--zzz",
            "--optim.lr",
            "-1",
        ]
    )
    assert o.mistakes == [
        "unexpected argument 'word'. Options start with --, as in --preset demo.",
        "unknown option --optim.lrr. Did you mean --optim.lr?",
        "unknown option --lr. Did you mean --optim.lr?",
        "--seed takes one value, got none.",
        "--preset takes one value, got a b.",
        "unexpected argument 'yes' behind --dry-run, which takes no value.",
        "unknown option --allow-partial. Did you mean --data.allow_partial?",
        "unknown option --zzz. See mpd-agl train --help.",
    ]
    assert o.overrides == {"optim.lr": "-1"}


def test_later_tables_win_field_by_field() -> None:
    merged = merge({"seed": 1, "optim": {"lr": 1, "momentum": 2}}, {"optim": {"lr": 3}})
    assert merged == {"seed": 1, "optim": {"lr": 3, "momentum": 2}}
    assert nest(flatten(merged)) == merged


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the file is not there"):
        read_toml(tmp_path / "none.toml")
    (tmp_path / "a.toml").write_text("seed = = 3")
    with pytest.raises(InputError, match=r"is not valid TOML: .*line 1"):
        read_toml(tmp_path / "a.toml")
    (tmp_path / "a.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="cannot be read"):
        read_toml(tmp_path / "a.toml")


@pytest.mark.parametrize("text", ['a"b\\c', "tab\t", "line\nbreak", "ünï", "\x7f\x00", "'"])
def test_any_text_survives_toml(text: str) -> None:
    config = resolve({"data": {"data_dir": text}})
    assert tomllib.loads(to_toml(config))["data"]["data_dir"] == text


def test_what_may_change_on_resume_exists_and_the_rest_may_not() -> None:
    assert set(FREE_ON_RESUME) <= set(fields_of())
    check_unchanged(RunConfig(), resolve({"train": {"workers": 0}}))
    with pytest.raises(InputError, match=r'method was "mpd-agl", got "lsg"'):
        check_unchanged(RunConfig(), resolve({"method": "lsg"}))


def test_every_field_is_in_the_help() -> None:
    text = help_text({})
    for name in (*fields_of(), *list_presets(), *VALUES, *FLAGS):
        assert name.replace("_", "-") in text, name
    assert "--optim.name sgd|adam|adamw" in text
    assert "--train.epochs INT            (default: 150)" in text
    assert "--train.epochs INT            (default: 12)" in help_text(read_preset("demo"))

"""The held-out runs behind mpd-gain's constants: which samples they see, and what they put into the rule."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tools.gain_choice import TRIALS, Trial, folder_of

from mpd_agl import core
from mpd_agl.core import get_surrogate, mpd
from mpd_agl.errors import InputError
from mpd_agl.nn import ChainWidth
from mpd_agl.nn.moments import Potential
from tools import gain_choice, gain_parts

ROOT = Path(__file__).parents[2]
TRIANGULAR = get_surrogate("triangular")


def at_start():
    mean_T, std_T = torch.zeros(1), torch.full((1,), 0.5)
    return Potential(1, 0.5, torch.tensor(0.2), lambda kind: (mean_T, std_T), None, TRIANGULAR)


def test_a_trial_puts_its_constants_into_the_rule_and_takes_them_out_again():
    rule, usual = ChainWidth(15), (core.chain_share(15), float(ChainWidth(15)(at_start())))
    with Trial("a", "plain", "digits", end=0.1, growth=2.0).constants():
        assert core.chain_share(15) == pytest.approx(0.1 ** (1 / 15))
        assert mpd.CHAIN_GROWTH == 2.0
        wide = float(rule(at_start()))
        share = core.signal_share(torch.zeros(1), torch.full((1,), 0.5), torch.tensor([wide]), TRIANGULAR)
        assert float(share) == pytest.approx(0.1 ** (1 / 15), abs=4e-3)
    assert (core.chain_share(15), float(rule(at_start()))) == usual
    assert mpd.CHAIN_GROWTH == 30.0
    with Trial("c", "cnn8", "digits", height=0).constants():
        assert float(rule.with_gain(at_start())[1]) == pytest.approx(1.0)
    silent = torch.full((1,), -1.5), torch.full((1,), 0.5)  # four deviations below the threshold
    faint = Potential(1, 0.5, torch.tensor(0.2), lambda kind: silent, None, TRIANGULAR)
    with Trial("d", "cnn8", "digits", far=1.0).constants():
        high = float(rule.with_gain(faint)[1])
    with Trial("e", "cnn8", "digits").constants():  # as the rule was: it follows the spikes
        assert float(rule.with_gain(faint)[1]) == pytest.approx(0.1)
    ratio = high / float(rule.with_gain(faint)[1])
    assert ratio == pytest.approx(2.4503, rel=1e-3)  # sqrt(0.13348 / 0.02223): r (1 - r) at 1 and at 2 deviations
    with Trial("b", "cnn8", "digits", share=0.35).constants():
        assert core.chain_share(2) == core.chain_share(31) == 0.35


def test_trials_hold_samples_out_and_have_folders_of_their_own():
    for trial, seeds in TRIALS:
        for seed in seeds:
            config = trial.config(seed, "")
            assert config.data.holdout == gain_choice.HELD_OUT[trial.data]
            assert (config.seed, config.method) == (seed, trial.method)
    folders = [folder_of(Path("runs"), trial, seed) for trial, seeds in TRIALS for seed in seeds]
    assert len(set(folders)) == len(folders)


def test_the_rules_own_constants_are_among_the_trials_and_in_the_record():
    kept = json.loads((ROOT / "docs/results/gain-choice.json").read_text(encoding="utf-8"))["trials"]
    assert len(kept) == sum(len(seeds) for _, seeds in TRIALS)
    deep = {(t["end"], t["seed"]): t["held_out_accuracy"] for t in kept if t["name"].startswith("24 layers, end")}
    assert all(deep[mpd.END_SHARE, seed] > deep[0.1, seed] for seed in (10, 11))
    faint = {(t["name"], t["seed"]): t["held_out_accuracy"] for t in kept if t["name"].startswith("gamma 0.3")}
    ours = f"gamma 0.3, far {mpd.FAR_OUT:g}"
    assert all(faint[ours, seed] > faint["gamma 0.3, MPD-AGL", seed] + 0.3 for seed in (10, 11))


def test_a_run_made_with_other_constants_is_refused(tmp_path, monkeypatch):
    trial = Trial("a", "cnn8", "digits", share=0.35, height=1.25)
    record = SimpleNamespace(
        final={"test_accuracy": 0.5, "train_loss": 1.0},
        config=trial.config(10, "").model_dump(mode="json"),
        code={},
        clock={"started": ""},
        hardware={"cpu": "", "simd": ""},
        versions={"torch": ""},
    )
    monkeypatch.setattr(gain_choice, "read_record", lambda path: record)
    monkeypatch.setattr(gain_choice, "start", lambda config, folder, display: folder.mkdir())
    assert gain_choice.train(trial, 10, tmp_path / "run", "")
    note = tmp_path / "run" / "trial.json"
    assert json.loads(note.read_text())["rule"] == {"end": 0.005, "growth": 30.0, "far": 8.0, "eq7": mpd.EQ7_SHARE}
    for other, named in (
        (replace(trial, share=0.48), "share"),
        (replace(trial, height=0), "height"),
        (replace(trial, end=0.1), "end, rule"),
    ):
        with pytest.raises(InputError, match=rf"run holds another run \({named} differ\)"):
            gain_choice.told(other, 10, tmp_path / "run")
    assert gain_choice.told(trial, 10, tmp_path / "run")["held_out_accuracy"] == 0.5
    (tmp_path / "run" / "record.json").write_text("{}")
    assert not gain_choice.train(trial, 10, tmp_path / "run", "")  # it is there
    note.write_text('{"share": ')
    with pytest.raises(InputError, match=r"trial.json are not what was written"):
        gain_choice.told(trial, 10, tmp_path / "run")
    note.unlink()
    with pytest.raises(InputError, match="holds another run"):
        gain_choice.told(trial, 10, tmp_path / "run")


def test_a_part_that_is_left_out_is_that_of_eq_7(tmp_path, capsys):
    rule, growths = ChainWidth(23), []
    found = {}
    for own in gain_parts.WAYS:
        with gain_parts.trial_of("sgd", own).constants():
            kappa, gain = rule.with_gain(at_start())
            found[own] = round(float(kappa) / 0.5, 2), round(float(gain), 2)
            growths.append(mpd.CHAIN_GROWTH)
    wide, high = round(float(rule(at_start())) / 0.5, 2), round(float(rule.with_gain(at_start())[1]), 2)
    assert (found[True, True, True], growths[-1]) == ((wide, high), 30.0)
    assert wide == pytest.approx(2.6, abs=0.05)  # docs/gain.md: 24 layers, triangular
    assert found[True, False, True] == (wide, 1.0)
    narrow, matched = found[False, True, True]
    assert narrow == pytest.approx(1.3, abs=0.05)  # Eq. 7's share
    assert matched < high  # a narrower window of unit area is higher by itself
    assert found[False, False, False] == (narrow, 1.0)
    assert growths == [1e9, 30.0] * 4
    assert gain_parts.trial_of("adam", (True,) * 3).config(10, "").optim.name == "adam"
    assert gain_parts.main([str(tmp_path), "--draw"]) == 2
    assert "is not there. Train it: leave --draw out." in capsys.readouterr().err

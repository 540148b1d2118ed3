"""The studies of docs/evidence.md: slices, widths chosen on held-out samples, runs that end in NaN, measurements."""

import itertools
import json
import math
from dataclasses import replace

import pytest
import torch
from experiments.grouped_bars import colour, style_of
from experiments.pool import Pool
from experiments.reproduce import (
    Request,
    check_before_training,
    command,
    gather,
    numbers,
    progress,
    set_by_hand,
    show,
    summary,
    train,
)
from experiments.studies import get_study
from experiments.tuning import KAPPAS, SEED
from torch.nn import functional as F

from experiments import descent_measure, smoothed
from mpd_agl.errors import InputError
from mpd_agl.models import create_model
from mpd_agl.nn import SpikingBlock
from mpd_agl.train.losses import cross_entropy
from mpd_agl.train.resolve import resolve
from tests.report import runfolder

TUNED = "stbp-tdbn@kappa=best"


def ask(name="stress", scale="cpu", seeds=3, methods=(TUNED, "mpd-agl"), **only):
    chosen = {key: tuple(values.split(",")) for key, values in only.items()}
    return Request(study=get_study(name), scale=scale, seeds=seeds, methods=methods, only=chosen)


@pytest.fixture
def by_hand(monkeypatch):
    """`Pool.train` writes a run whose accuracy is known: best at kappa = 0.2, equal at 0.5, less loss at 0.5."""
    trained = []

    def write(pool, config, display):
        trained.append(config)
        score = 0.9 - 0.1 * (getattr(config.model, "kappa", 1.0) not in (0.2, 0.5)) + 0.01 * (config.seed % 10)
        scores = {**runfolder.epoch(1), "test_accuracy": score, "test_loss": 1 - config.model.kappa / 100}
        table = runfolder.record(pool.path(config).name)
        table |= {"config": config.model_dump(mode="json"), "best_on_test": None}
        table["final"] = {k: scores[k] for k in table["final"]}
        if config.method == "mpd-agl" and config.seed == 1:
            table |= {
                "status": "failed",
                "final": None,
                "failure": "training stopped at epoch 1, step 2 of 9: loss nan.",
            }
            runfolder.write(pool.path(config), table, [])
            raise InputError(table["failure"])
        runfolder.write(pool.path(config), table, [scores])

    monkeypatch.setattr(Pool, "train", write)
    return trained


def test_a_width_is_chosen_on_held_out_samples_and_nan_counts_as_guessing(by_hand, tmp_path):
    asked, pool = ask(factor="threshold", value="0.1", data="digits"), Pool(tmp_path)
    assert progress(asked, pool, None) == "stress: 13 runs, 13 left"
    assert train(asked, pool, lambda: None, lambda text: None) == (13, 13)
    tuning, final = by_hand[: len(KAPPAS)], by_hand[len(KAPPAS) :]
    assert [c.model.kappa for c in tuning] == list(KAPPAS)
    assert {(c.seed, c.data.holdout, c.data.train_samples) for c in tuning} == {(SEED, 800, 0)}
    assert {(c.data.holdout, c.model.v_th) for c in final} == {(0, 0.1)}
    assert {c.model.kappa for c in final if c.method == "stbp-tdbn"} == {0.5}
    groups = gather(asked, pool)
    tuned, ours = groups
    assert tuned.accuracy == pytest.approx({0: 0.9, 1: 0.91, 2: 0.92})
    guess = 1 / len(ours.runs[0].record.data["classes"])
    assert ours.accuracy == pytest.approx({0: 0.8, 1: guess, 2: 0.82})
    section = show(asked, groups)
    assert any("Ended in NaN, counted as guessing: MPD-AGL (threshold, 0.1, digits)" in n for n in section.notes)
    gap = next(row for row in section.details.rows if row[3] == "MPD-AGL")[7]
    assert gap.startswith(f"{100 * ((0.8 - 0.9) + (guess - 0.91) + (0.82 - 0.92)) / 3:+.2f} [")
    assert train(asked, pool, lambda: None, lambda text: None) == (0, 13)  # a run that diverged is not tried again
    told = json.loads(json.dumps(summary(asked, groups, section)))
    assert told["cells"][1]["ended_in_nan"] == [1]
    assert told["command"].endswith("--only factor=threshold value=0.1 data=digits")


def test_a_part_is_shown_and_told(by_hand, tmp_path):
    part = ask(factor="threshold", value="0.1", data="digits", seed="0", method="mpd-agl")
    train(part, Pool(tmp_path), lambda: None, lambda text: None)
    whole = ask(factor="threshold", value="0.1", data="digits")
    section = show(whole, gather(whole, Pool(tmp_path)))
    assert "Not complete: 5 of 6 runs are not there yet." in section.notes
    assert [row[3] for row in section.details.rows] == ["MPD-AGL"]


@pytest.mark.parametrize(
    ("only", "words"),
    [
        ({"facto": "x"}, "unknown condition of --only for stress 'facto'. Did you mean 'factor'"),
        ({"factor": "treshold"}, "unknown factor of stress at scale cpu 'treshold'"),
        ({"seed": "3"}, "unknown seed of stress at scale cpu '3'"),
        ({"factor": "depth", "value": "0.1"}, "unknown value of stress at scale cpu, factor=depth '0.1'"),
    ],
)
def test_slices_that_do_not_exist_are_refused(only, words):
    with pytest.raises(InputError, match=words):
        ask(**only)


def test_runs_of_another_number_of_threads_are_told(by_hand, tmp_path):
    def asked(**changes):
        only = {"factor": ("threshold",), "value": ("0.5",), "data": ("digits",)}
        found = {"study": get_study("stress"), "scale": "cpu", "seeds": 1, "methods": ("mpd-agl",)}
        return Request(**found, only=only, changes={f"train.{k}": v for k, v in changes.items()})

    pool = Pool(tmp_path)
    train(asked(threads=1), pool, lambda: None, lambda text: None)
    with pytest.raises(InputError, match=r"1 of those that are missing are there with --train.threads 1: add it\."):
        gather(asked(threads=2), pool)
    with pytest.raises(InputError, match=r"Train them by the same command without --draw\."):
        gather(asked(threads=2, epochs=1), pool)
    section = show(asked(threads=1), gather(asked(threads=1), pool))
    assert not [note for note in section.notes if note.startswith("Set for all runs")]
    train(asked(epochs=1), pool, lambda: None, lambda text: None)
    assert "Set for all runs: train.epochs 1." in show(asked(epochs=1), gather(asked(epochs=1), pool)).notes
    assert set_by_hand(replace(asked(), changes={"data.augment": ["crop=4", "flip"]})) == ["data.augment crop=4 flip"]


def test_a_threshold_that_was_not_run_has_no_column_on_its_map(by_hand, tmp_path):
    methods, pool = ("lsg",), Pool(tmp_path)
    for data, v_th in (("digits", "0.1,4"), ("cifar10", "0.5")):
        part = ask("ridge", seeds=1, methods=methods, network="resnet19", data=data, v_th=v_th)
        train(part, pool, lambda: None, lambda text: None)
    section = show(whole := ask("ridge", seeds=1, methods=methods, network="resnet19"), gather(whole, pool))
    assert [row[:3] for row in section.table.rows] == [
        ["ResNet-19", "digits", "0.1"],
        ["ResNet-19", "digits", "4"],
        ["ResNet-19", "CIFAR-10", "0.5"],
    ]
    maps = [axes for axes in section.panels[0].figure.axes if axes.get_xlabel()]
    assert [[t.get_text() for t in axes.get_xticklabels()] for axes in maps] == [["0.1", "4"], ["0.5"]]


def test_the_smoke_scale_of_stress_calls_no_digits_cifar():
    assert {v.at["data"] for v in ask(scale="smoke").variants()} == {"digits"}


@pytest.mark.parametrize("name", ["ridge", "stress", "depth"])
def test_the_smoke_scale_drops_no_method_that_was_asked_for(name):
    variants = ask(name, scale="smoke", methods=("mpd-gain", "psg@kappa=2")).variants()
    assert {"mpd-gain", "psg@kappa=2"} <= {v.method for v in variants}
    with pytest.raises(InputError, match="kappa"):
        ask(name, scale="smoke", methods=("mpd-gain@kappa=2",)).configs()


def test_table3_shows_runs_that_ended_in_nan(by_hand, tmp_path):
    asked, pool = ask("table3", seeds=2, methods=("stbp-tdbn", "mpd-agl"), seed="1"), Pool(tmp_path)
    train(asked, pool, lambda: None, lambda text: None)
    section = show(asked, groups := gather(asked, pool))
    fixed, ours = section.table.rows
    assert (fixed[1], ours[1]) == ("81.00", "50.00 \N{DAGGER}1")
    assert [row[1] for row in section.details.rows] == ["STBP-tdBN", "MPD-AGL"] * 2
    told = numbers(asked, groups, section)
    at = {"CIFAR-10": {"data": "CIFAR-10"}, "CIFAR-100": {"data": "CIFAR-100"}}
    assert told["ended_in_nan"] == [
        {"method": "mpd-agl", "at": a, "seeds": [1], "accuracy": {"1": 0.5}} for a in at.values()
    ]


def test_weights_to_start_from_are_part_of_a_run(by_hand, tmp_path):
    def asked(changes, methods=("lsg",)):
        return Request(
            study=get_study("table3"),
            scale="cpu",
            seeds=1,
            methods=methods,
            changes=changes,
            only={"data": ("CIFAR-10",)},
        )

    drawn, begun = asked({}), asked({"model.weights": "cifar10"})
    pool = Pool(tmp_path)
    train(drawn, pool, lambda: None, lambda text: None)
    assert [pool.finished(c) for c in drawn.configs()] == [True]
    assert [pool.finished(c) for c in begun.configs()] == [False]
    assert command(begun).endswith("--model.weights cifar10")
    train(begun, pool, lambda: None, lambda text: None)
    with pytest.raises(InputError, match="began with another version of the weights 'cifar10'"):
        pool.finished(begun.configs()[0])  # the run by hand holds no hash of the weights
    with pytest.raises(InputError, match=r"takes cifar10 or cifar100, got 'runs/mine'"):
        asked({"model.weights": "runs/mine"}).configs()
    with pytest.raises(InputError, match="trains each run's teacher itself"):
        asked({"loss.teacher": "runs/mine"}).configs()
    with pytest.raises(InputError, match=r"stbp-tdbn.* cannot start: the weights of 'cifar10' do not fit .*rho"):
        check_before_training([asked({"model.weights": "cifar10"}, ("stbp-tdbn",))], Pool(tmp_path / "empty"))


def test_the_ridges_sentence_tells_each_map_apart(by_hand, tmp_path):
    asked, pool = ask("ridge", seeds=1, methods=("lsg",), network="cnn8", v_th="0.1"), Pool(tmp_path)
    train(asked, pool, lambda: None, lambda text: None)
    told = show(asked, gather(asked, pool)).sentence
    each = "STBP-tdBN, kappa=1 -10.0 (v_th 0.1); LSG -10.0 (v_th 0.1)"
    assert told.endswith(f"in points. CNN-8 on digits: {each}. CNN-8 on CIFAR-10: {each}.")


def test_the_factor_under_test_survives_every_scale():
    for scale in ("smoke", "cpu", "paper"):
        found = {(v.at["factor"], v.at["value"]): v for v in ask(scale=scale, methods=("mpd-agl",)).variants()}
        asked = ask(scale=scale, methods=("mpd-agl",))
        assert asked.config(found["batch", "25"], 0).train.batch_size == 25
        assert asked.config(found["decay-t4", "0.95"], 0).model.num_steps == 4


def small_run():
    config = resolve({"method": "mpd-agl", "model": {"name": "plain", "depth": 4, "backend": "eager"}})
    options = {"in_channels": 1, "image_size": 8, "num_classes": 10}
    net = create_model("plain", depth=4, method="mpd-agl", backend="eager", **options).train()
    made = torch.Generator().manual_seed(0)
    pairs = [(torch.randn(16, 1, 8, 8, generator=made), torch.randint(10, (16,), generator=made)) for _ in range(2)]
    with torch.no_grad():
        for block in (m for m in net.modules() if isinstance(m, SpikingBlock)):
            block.neuron.rho.fill_(0.3)
            block.norm.weight.uniform_(0.5, 2)
    return config, net, pairs


@pytest.mark.parametrize("method", ["stbp-tdbn", "lsg", "mpd-agl-exact", "mpd-quantile", "mpd-gain"])
def test_another_rule_leaves_the_forward_pass_and_changes_the_width(method):
    config, net, (same, _) = small_run()
    twice = descent_measure.with_rule(net, config, method, 2.0, same[0])
    once = descent_measure.with_rule(net, config, method, 1.0, same[0])
    torch.testing.assert_close(twice(same[0]), net(same[0]), rtol=0, atol=0)
    first, second = (next(m for m in n.modules() if isinstance(m, SpikingBlock)) for n in (once, twice))
    torch.testing.assert_close(second.kappa(2), 2 * first.kappa(2))
    grads = [descent_measure.gradient(n, same)[0][0] for n in (once, twice)]
    assert float((grads[0] - grads[1]).norm()) > 0.05 * float(grads[0].norm())


def test_a_rule_that_sets_the_height_sets_it_for_the_factors_width_too():
    config, net, (same, _) = small_run()
    wide = descent_measure.with_rule(net, config, "mpd-gain", 4.0, same[0])
    block = next(m for m in wide.modules() if isinstance(m, SpikingBlock))
    potential = block._potential(2, None, None, None)
    kappa_T, gain_T = block.width.with_gain(potential)
    mean_T, std_T = potential.moments("exact")
    surrogate, v_T = block.neuron.surrogate, torch.linspace(-8, 8, 4001)[:, None]
    normal = torch.distributions.Normal(mean_T, std_T).log_prob(mean_T + std_T * v_T).exp() * std_T * 0.004
    h = gain_T * surrogate.grad(mean_T + std_T * v_T - 0.5, kappa_T)
    rate = 1 - torch.distributions.Normal(mean_T, std_T).cdf(torch.tensor(0.5))
    torch.testing.assert_close((h.square() * normal).sum(0) * std_T.square(), rate * (1 - rate), rtol=1e-3, atol=0)


def test_falls_are_differences_of_the_loss_and_leave_the_weights():
    config, net, (same, fresh) = small_run()
    own = descent_measure.with_rule(net, config, "mpd-agl", 1.0, same[0])
    grads, rms = descent_measure.gradient(own, same)
    cross_entropy(net(same[0]), same[1]).backward()
    for mine, theirs in zip(grads, descent_measure.weights(net), strict=True):
        torch.testing.assert_close(mine, theirs.grad, rtol=0, atol=0)
    assert list(rms) == ["conv1", "conv2", "conv3"]
    told = descent_measure.measure(net, config, "mpd-agl", (1.0,), [(same, fresh)])["1"]
    assert (told["layers"], told["gradient_rms"]) == (list(rms), list(rms.values()))
    before = [p.detach().clone() for p in own.parameters()]
    found = descent_measure.falls(own, grads, same, fresh, layerwise=False)
    for p, kept in zip(own.parameters(), before, strict=True):
        torch.testing.assert_close(p.detach(), kept, rtol=0, atol=0)
    weights = descent_measure.weights(own)
    size, steep = (math.sqrt(sum(float(t.detach().square().sum()) for t in ts)) for ts in (weights, grads))
    start = descent_measure.loss_of(own, fresh)
    with torch.no_grad():
        for p, g in zip(weights, grads, strict=True):
            p -= descent_measure.STEPS[2] * size / steep * g
    assert found["fresh"][2] == pytest.approx(start - descent_measure.loss_of(own, fresh), abs=1e-5)


def test_the_estimate_is_unbiased():
    """One layer of two neurons at T = 1: the expected loss is a sum over four patterns of spikes."""
    net = smoothed.Small(features=3, hidden=2, layers=1, num_steps=1, classes=4, noise=0.5)
    made = torch.Generator().manual_seed(1)
    x, y = torch.randn(4, 3, generator=made), torch.tensor([0, 1, 2, 3])
    weights = [torch.randn(2, 3, generator=made), 2 * torch.randn(4, 2, generator=made)]
    w = weights[0].double().requires_grad_()
    p = torch.special.ndtr((x.double() @ w.T - net.v_th) / (net.noise * net.v_th))
    expected = 0.0
    for pattern in itertools.product((0.0, 1.0), repeat=2):
        s = torch.tensor(pattern, dtype=torch.float64)
        chance = (p * s + (1 - p) * (1 - s)).prod(1)
        logits = (weights[1].double() @ s).expand(4, 4)
        expected = expected + (chance * F.cross_entropy(logits, y, reduction="none")).mean()
    [exact] = torch.autograd.grad(expected, w)
    draws = [smoothed.unbiased(net, weights, x, y, 2000, seed)[0].double() for seed in range(10)]
    mean, spread = torch.stack(draws).mean(0), torch.stack(draws).std(0) / math.sqrt(len(draws))
    assert ((mean - exact).abs() < 5 * spread + 1e-4).all()
    assert float(spread.max()) < 0.1 * float(exact.abs().max())


def test_a_method_with_options_has_its_methods_colour_and_a_line_of_its_own():
    for method in ("stbp-tdbn", "mpd-agl", "mpd-gain"):
        tuned = f"{method}@kappa=best"
        assert colour(tuned) == colour(method)
        assert style_of(tuned) == ":" != style_of(method)
    assert colour("lsg") != colour("stbp-tdbn@kappa=best")

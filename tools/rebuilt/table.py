"""The planted mutants: what to find in src (once), what to put there, and the tests that must notice.

Where a text has gone with its code, the mutant is lost: plant the same fault in the code that took its place.
"""

from typing import NamedTuple


class Mutant(NamedTuple):
    """`text` must be in src exactly once, white space apart; `tests` are names of files under tests."""

    name: str
    text: str
    instead: str
    tests: tuple[str, ...]


MUTANTS = (
    Mutant(
        "spike at the threshold",
        "return (u >= 0).to(u.dtype)",
        "return (u > 0).to(u.dtype)",
        ("test_surrogate.py",),
    ),
    Mutant(
        "lif, decay_input",
        "(1 - tau if decay_input else 1) * i_T[t]",
        "(tau if decay_input else 1) * i_T[t]",
        ("test_lif.py",),
    ),
    Mutant(
        "lif, gradient through the hard reset",
        "kept = v * (1 - reset_by) if reset",
        "kept = v * (1 - reset_by.detach()) if reset",
        ("test_lif.py",),
    ),
    Mutant(
        "lif, soft reset",
        'if reset == "hard" else v - v_th * reset_by',
        'if reset == "hard" else v - reset_by',
        ("test_lif.py",),
    ),
    Mutant(
        "rectangle, strict bound",
        "return (u.abs() < kappa / 2).to(u.dtype) / kappa",
        "return (u.abs() <= kappa / 2).to(u.dtype) / kappa",
        ("test_surrogate.py",),
    ),
    Mutant(
        "triangle, half-width",
        "return (1 - u.abs() / kappa).clamp_min(0) / kappa",
        "return (1 - 2 * u.abs() / kappa).clamp_min(0) * 2 / kappa",
        ("test_surrogate.py",),
    ),
    Mutant(
        "dH/dkappa, sign",
        "return torch.where(h == 0, 0.0, -(u / kappa) * h)",
        "return torch.where(h == 0, 0.0, (u / kappa) * h)",
        ("test_surrogate.py",),
    ),
    Mutant(
        "Theorem 1, sign of gamma",
        "return beta_bar, gamma_bar.abs() * (alpha * v_th)",
        "return beta_bar, gamma_bar * (alpha * v_th)",
        ("test_mpd.py",),
    ),
    Mutant(
        "Theorem 1, exact variance",
        "gamma_C.square().mean() + beta_C.var(correction=0)",
        "gamma_C.square().mean()",
        ("test_mpd.py",),
    ),
    Mutant(
        "Theorem 2, deviation",
        "(torch.sqrt(1 + tau * tau) * std).reshape(1)",
        "((1 + tau) * std).reshape(1)",
        ("test_mpd.py",),
    ),
    Mutant(
        "full leak, deviation",
        "(tau * tau).pow(exponents_T).cumsum(0).sqrt() * std",
        "tau.pow(exponents_T).cumsum(0) * std",
        ("test_mpd.py",),
    ),
    Mutant(
        "Eq. 7, factor",
        "return torch.clamp(2 * std_T, min=KAPPA_MIN * v_th)",
        "return torch.clamp(std_T, min=KAPPA_MIN * v_th)",
        ("test_mpd.py",),
    ),
    Mutant(
        "Eq. 7, lower bound",
        "return torch.clamp(2 * std_T, min=KAPPA_MIN * v_th)",
        "return 2 * std_T",
        ("test_mpd.py",),
    ),
    Mutant(
        "LSG",
        "return (2 * v_th * torch.sqrt(1 + tau * tau)).reshape(1)",
        "return (2 * v_th * (1 + tau * tau)).reshape(1)",
        ("test_mpd.py",),
    ),
    Mutant(
        "mpd-gain, height",
        "gain_T: Tensor = (rate_T * (1 - rate_T) /",
        "gain_T: Tensor = (rate_T /",
        ("test_chain_width.py",),
    ),
    Mutant(
        "mpd-gain, growth",
        "return core.CHAIN_GROWTH ** (1 / self.layers) if",
        "return core.CHAIN_GROWTH if",
        ("test_chain_width.py",),
    ),
    Mutant(
        "BoundedSize, deviations swapped",
        "factor = bound_factor(passed.sqrt(), received.sqrt(), std_in, std_out, self.max_growth)",
        "factor = bound_factor(passed.sqrt(), received.sqrt(), std_out, std_in, self.max_growth)",
        ("test_chain_width.py",),
    ),
    Mutant(
        "tdBN, threshold",
        "x_hat = alpha * v_th * (x_TNC - mean)",
        "x_hat = alpha * (x_TNC - mean)",
        ("test_tdbn.py",),
    ),
    Mutant(
        "running variance, core",
        "unbiased_C = var_C * (count / (count - 1))",
        "unbiased_C = var_C",
        ("test_tdbn.py",),
    ),
    Mutant(
        "running variance, module",
        "self.running_var.lerp_((var_C * (count / (count - 1))).to(",
        "self.running_var.lerp_((var_C).to(",
        ("test_block.py",),
    ),
    Mutant(
        "running variance, one step for T",
        "count = rows * repeats",
        "count = rows",
        ("test_block.py",),
    ),
    Mutant(
        "sum of currents, variances",
        "torch.stack([s * s for _, s in parts]).sum().sqrt()",
        "torch.stack([s for _, s in parts]).sum()",
        ("test_block.py",),
    ),
    Mutant(
        "fused, dgamma",
        "dweight_C = sum_dv_x_C * invstd_C",
        "dweight_C = sum_dv_x_C",
        ("test_step.py",),
    ),
    Mutant(
        "fused, dx through the variance",
        "m1_C, m2_C = all_dv_C / call.rows, invstd_C * invstd_C * all_dv_x_C / call.rows",
        "m1_C, m2_C = all_dv_C / call.rows, invstd_C * all_dv_x_C / call.rows",
        ("test_step.py",),
    ),
    Mutant(
        "fused, dtau through decay_input",
        "weight, bias = weight * (1 - tau), bias * (1 - tau)",
        "weight, bias = weight * (1 - tau.detach()), bias * (1 - tau.detach())",
        ("test_step.py",),
    ),
    Mutant(
        "plain backward, Eq. 13 soft",
        "ds = g if detach_reset else g - leak * (v_th if soft else v) * dv",
        "ds = g if detach_reset else g - leak * v * dv",
        ("test_step.py",),
    ),
    Mutant(
        "plain backward, Eq. 12",
        "dv = by_spike + leak * (dv if soft else torch.where(u >= 0, 0.0, dv))",
        "dv = by_spike + leak * dv",
        ("test_step.py",),
    ),
    Mutant(
        "plain backward, dtau",
        "dtau = dtau + over_neurons(dv * after_reset(v, v_th, soft))",
        "dtau = dtau + over_neurons(dv * v)",
        ("test_step.py",),
    ),
    Mutant(
        "plain backward, dv_th",
        "by_reset = torch.where(u >= 0, leak * dv, 0.0) if soft else 0.0",
        "by_reset = 0.0",
        ("test_step.py",),
    ),
    Mutant(
        "plain backward, gain",
        "by_spike = ds * (gain_T[t] * surrogate.grad(u, kappa_T[t]))",
        "by_spike = ds * surrogate.grad(u, kappa_T[t])",
        ("test_step.py",),
    ),
    Mutant(
        "plain backward, state",
        "dstate_MC = tau * dv",
        "dstate_MC = dv",
        ("test_step.py",),
    ),
    Mutant(
        "state, what leaked before",
        "past = 1 if self.carried and",
        "past = 0 if self.carried and",
        ("test_neuron.py", "test_block.py"),
    ),
    Mutant(
        "C++ backward, detached reset",
        "float ds = g_t[p] - through_reset * v_t[p] * after;",
        "float ds = g_t[p] - tau * v_t[p] * after;",
        ("test_step.py",),
    ),
    Mutant(
        "C++ backward, dtau",
        "acc_tau[p] += kept * v_t[p];",
        "acc_tau[p] += after * v_t[p];",
        ("test_step.py",),
    ),
    Mutant(
        "C++ backward in registers, dtau",
        "sum_tau += kept * w[t];",
        "sum_tau += after * w[t];",
        ("test_loss_curve.py",),
    ),
    Mutant(
        "C++ moments, variance",
        "double v = partial2[c] / rows - m * m;",
        "double v = partial2[c] / rows;",
        ("test_native.py", "test_step.py"),
    ),
    Mutant(
        "C++ general, soft reset",
        "return v >= v_th ? v - v_th : v;",
        "return v >= v_th ? v - 1.0f : v;",
        ("test_step.py",),
    ),
    Mutant(
        "C++ general, dL/dstate",
        "after[p] = tau[p] * d;",
        "after[p] = d;",
        ("test_step.py",),
    ),
    Mutant(
        "C++ Winograd, weight gradient",
        "g[2] = PP * even_p + QQ * even_q + h[5];",
        "g[2] = PP * even_p + QQ * even_q;",
        ("test_conv_winograd.py",),
    ),
    Mutant(
        "C++ event-driven, second chain of sums",
        "load(sum + j * LANES) + (a[j] + b[j])",
        "load(sum + j * LANES) + a[j]",
        ("test_conv_event.py",),
    ),
    Mutant(
        "shared batch, variance between parts",
        "var_C = m2_RC.sum(0) / total + (weight_R1 * (mean_RC - mean_C).square()).sum(0)",
        "var_C = m2_RC.sum(0) / total",
        ("test_share_batch.py",),
    ),
    Mutant(
        "shared batch, gradient sums",
        "all_dv_C, all_dv_x_C = call.sync.sum(torch.stack([sum_dv_C, sum_dv_x_C]))",
        "all_dv_C, all_dv_x_C = sum_dv_C, sum_dv_x_C",
        ("test_share_batch.py",),
    ),
    Mutant(
        "DDP, sum of gradients",
        "work = dist.all_reduce(bucket.buffer(), async_op=True)",
        "work = dist.all_reduce(bucket.buffer().div_(2), async_op=True)",
        ("test_train_ranks.py",),
    ),
    Mutant(
        "readout, mean over time",
        "return o_TNK.float().mean(0)",
        "return o_TNK.float().sum(0)",
        ("test_train_parts.py",),
    ),
    Mutant(
        "TET, labels of each step",
        "each = F.cross_entropy(o.reshape(T * N, K), y_N.repeat(T)",
        "each = F.cross_entropy(o.reshape(T * N, K), y_N.repeat_interleave(T)",
        ("test_train_parts.py",),
    ),
    Mutant(
        "TET, weight",
        "return (1 - lambda_) * each + lambda_ *",
        "return each + lambda_ *",
        ("test_train_parts.py",),
    ),
    Mutant(
        "resume, generators",
        'torch.set_rng_state(_bytes(state["torch"]))',
        "pass",
        ("test_train_parts.py",),
    ),
    Mutant(
        "resume, momentum",
        'unpack_optimizer(stepper.optimizer, self.net, saved.tensors["optimizer"], stepper.objective)',
        "pass",
        ("test_train_resume.py", "test_train_checkpoint.py"),
    ),
    Mutant(
        "resume, place in the epoch",
        "self.run.train.epoch(p.epoch, p.epoch_step)",
        "self.run.train.epoch(p.epoch)",
        ("test_train_resume.py", "test_train_checkpoint.py"),
    ),
    Mutant(
        "recompute, statistics counted twice",
        "setattr(module, name, buffer.clone())",
        "setattr(module, name, buffer)",
        ("test_checkpoint.py",),
    ),
    Mutant(
        "checkpoint, checksum of a file",
        'if hashlib.sha256(data).hexdigest() != expected["sha256"]:',
        "if False:",
        ("test_train_checkpoint.py",),
    ),
    Mutant(
        "checkpoint, manifest's own digest",
        "return right and canonical(manifest) == data",
        "return True",
        ("test_train_checkpoint.py",),
    ),
    Mutant(
        "download, checksum",
        "if not _is(part, file.digest, file.size):",
        "if False:",
        ("test_sources_download.py",),
    ),
    Mutant(
        "stored pixels, checksum",
        "if found.sha256 != expected:",
        "if False:",
        ("test_sources_store.py",),
    ),
    Mutant(
        "stored labels, checksum",
        'if hashlib.sha256(labels).hexdigest() != header.get("labels_sha256") or len',
        "if len",
        ("test_sources_store.py",),
    ),
    Mutant(
        "split, share rounded up",
        "cut = -(-len(members) * share // 100)",
        "cut = len(members) * share // 100",
        ("test_splits.py",),
    ),
    Mutant(
        "energy, timesteps",
        "count = seen.rate * T * o.macs",
        "count = seen.rate * o.macs",
        ("test_analysis.py",),
    ),
    Mutant(
        "energy, stem once",
        "multiplies -= self.rows[0].macs * (self.num_steps - 1)",
        "multiplies -= self.rows[0].macs * self.num_steps",
        ("test_analysis.py",),
    ),
    Mutant(
        "fold, shift",
        "return scale_C, self.bias - self.running_mean * scale_C",
        "return scale_C, self.bias - self.running_mean",
        ("test_fold_real.py", "test_models.py"),
    ),
)

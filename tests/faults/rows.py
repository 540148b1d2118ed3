"""The rows of the table."""

from tests.faults import bits, disk, files, hostile, kill, mutated, nonfinite, ranks, signals, soak, twice
from tests.faults.tally import Row

ROWS = {
    "kill": Row(
        fault="kill -9 at a random moment, a quarter of them inside a save",
        must_hold="final weights, optimizer and RNG byte-identical to an undisturbed run, "
        "metrics equal but for clock times; at most one save interval repeated",
        nightly=200,
        run=kill.run,
    ),
    "ranks": Row(
        fault="kill -9 of one of two ranks",
        must_hold="recovers at the first restart, under 10 s, no hang over 60 s; "
        "the run ends with the bytes of an undisturbed one",
        nightly=50,
        run=ranks.run,
    ),
    "signals": Row(
        fault="SIGTERM, SIGINT, a second signal during the save",
        must_hold="verified checkpoint, distinct exit code, within one step + 2 s",
        nightly=50,
        run=signals.run,
    ),
    "bits": Row(
        fault="one flipped bit anywhere in a checkpoint",
        must_hold="detected, set aside, newest good one used",
        nightly=1000,
        run=bits.run,
    ),
    "files": Row(
        fault="truncation, missing or foreign file, other version",
        must_hold="one clear sentence, nothing overwritten",
        nightly=200,
        run=files.run,
    ),
    "disk": Row(
        fault="disk full (a small tmpfs), read-only folder",
        must_hold="previous checkpoint intact; message names path and space",
        nightly=20,
        run=disk.run,
    ),
    "nonfinite": Row(
        fault="NaN or Inf injected in input, loss, gradient",
        must_hold="the run stops within one step; bad weights never saved",
        nightly=50,
        run=nonfinite.run,
    ),
    "hostile": Row(
        fault="hostile archives, pickles and weight files",
        must_hold="refused, under 256 MB and 5 s, nothing outside the folder",
        nightly=50,
        run=hostile.run,
    ),
    "mutated": Row(
        fault="mutated data files, configurations, manifests, records, weights (hypothesis)",
        must_hold="typed error naming the place, or right data; no traceback, no hang",
        nightly=100_000,
        run=mutated.run,
    ),
    "twice": Row(
        fault="two processes on one run folder",
        must_hold="the second refuses within 1 s",
        nightly=20,
        run=twice.run,
    ),
    "soak": Row(
        fault="two hours of training on CIFAR-10",
        must_hold="memory growth under 1 %, open files constant, checkpoints under 1 % of the time",
        nightly=120,
        run=soak.run,
    ),
}

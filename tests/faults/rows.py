"""The rows of the table."""

from tests.faults import soak
from tests.faults.tally import Row

ROWS = {
    "soak": Row(
        fault="two hours of training on CIFAR-10",
        must_hold="memory growth under 1 %, open files constant, checkpoints under 1 % of the time",
        nightly=120,
        run=soak.run,
    ),
}

"""The composition root: a run's configuration becomes network, data and monitor, and these meet the loop."""

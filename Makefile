# Every target does its own set-up: a fresh clone needs nothing but Python 3.11+,
# and a C++ compiler for the fast CPU kernels.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
NATIVE := $(wildcard src/mpd_agl/ops/*.cpp src/mpd_agl/ops/*.h src/mpd_agl/ops/*/*.cpp src/mpd_agl/ops/*/*.h)

.PHONY: install demo test quick lint docs notebooks dist sanitize faults nightly clean

install: $(INSTALLED)

$(INSTALLED): pyproject.toml setup.py tools/constraints.txt tools/peers.txt $(NATIVE)
	@echo "installing into $(VENV): some minutes and about 2 GB, most of it torch"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint tools/constraints.txt -e ".[dev]"
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps -r tools/peers.txt
	touch $@

# a small network learns digits; then a threshold at which a fixed width fails; the page is runs/demo/report.html
demo: $(INSTALLED)
	$(BIN)/mpd-agl demo

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: lint
	$(BIN)/pytest -n 2

# what an engineer needs at each change, in under a minute: the linter, and the tests of equations, step and neurons
quick: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/pytest -n 2 tests/core tests/ops/test_step.py tests/nn

# the documentation site in build/site: asks no server for anything, ends at the first warning or dead link
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

$(VENV)/.docs: $(INSTALLED)
	$(BIN)/pip install --quiet --disable-pip-version-check -e ".[docs]"
	touch $@

# the four notebooks from top to bottom, at full size: some minutes
notebooks: $(INSTALLED)
	$(BIN)/pip install --quiet --disable-pip-version-check -e ".[notebooks,onnx,nir]"
	$(BIN)/python tools/notebooks.py

# source distribution and wheel of this machine, checked
dist: $(INSTALLED)
	$(BIN)/pip install --quiet --disable-pip-version-check build twine
	$(BIN)/python -m build
	$(BIN)/twine check --strict dist/*

# the kernel tests once under AddressSanitizer and UBSan and once under ThreadSanitizer (Linux, gcc)
sanitize: $(INSTALLED)
	$(BIN)/python tools/sanitize.py

# every row of the fault table at its nightly size: about an hour, and two for the soak, which downloads CIFAR-10
# where MPD_AGL_SOAK_DATA does not name its folder; a row with a record of this commit is left out, so that the target
# can be stopped and started again
faults: $(INSTALLED)
	$(BIN)/python -m tests.faults all
	$(BIN)/python -m tests.faults table

# every table and figure of the paper at the scale of seconds per run, in a folder that is gone afterwards
nightly: $(INSTALLED)
	folder=$$(mktemp -d) && trap 'rm -rf "$$folder"' EXIT && \
	$(BIN)/python -m experiments all --scale smoke --runs-dir "$$folder"

clean:
	rm -rf $(VENV) build src/*.egg-info src/mpd_agl/ops/*.so

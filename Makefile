# `make run` and `make test` set everything up themselves; nothing but Python 3.11+ and make is assumed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# What a run needs, and what tests, documentation and the notebook need besides.
RUNNABLE := $(VENV)/.runnable
INSTALLED := $(VENV)/.installed
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e

# One worker per core, so numerical libraries start no threads of their own. A worker that has no tests left takes
# some from another.
WORKERS := $(shell getconf _NPROCESSORS_ONLN)
PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest -n $(WORKERS) --dist worksteal
TWO_AT_A_TIME := hydra/launcher=joblib hydra.launcher.n_jobs=2

.PHONY: run test lint suite coverage docs tutorial benchmarks wheel constraints clean

# Three questions, one report: outputs/comparison/report.html. Each sweep adds its panel to those before.
run: $(RUNNABLE)
	$(BIN)/python -m simulations.run -m experiment=default/coordinate $(TWO_AT_A_TIME)
	$(BIN)/python -m simulations.run -m experiment=default/whole_run $(TWO_AT_A_TIME)
	$(BIN)/python -m simulations.run -m experiment=default/records $(TWO_AT_A_TIME)

test: lint suite

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check fl_privquant hydra_plugins simulations tests docs
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

suite: $(INSTALLED)
	$(PYTEST) --durations=10

# Lines and branches of the package that the tests reach; outputs/coverage shows them one by one.
coverage: $(INSTALLED)
	$(PYTEST) --cov --cov-report=term --cov-report=html:outputs/coverage --cov-fail-under=95

# outputs/docs/index.html. The notices that are turned off are about future versions of mkdocs.
docs: $(INSTALLED)
	NO_MKDOCS_2_WARNING=1 DISABLE_MKDOCS_2_WARNING=true $(BIN)/mkdocs build --strict --quiet -f docs/mkdocs.yml

# Runs the tutorial again, and writes the notebook with what it shows.
tutorial: $(INSTALLED)
	$(BIN)/jupytext --to ipynb --execute --run-path . simulations/tutorial.py

# Takes long, and wants the machine for itself: Ray does not start on one that is busy.
benchmarks: $(INSTALLED)
	$(BIN)/python -m simulations.benchmarks all

# dist/*.whl, checked; `tests/e2e/test_wheel.py` installs and uses one outside this folder.
wheel: $(INSTALLED)
	$(INSTALL) '.[release]'
	$(BIN)/python -m build --wheel --outdir dist
	$(BIN)/python -m twine check --strict dist/*.whl

# Writes down every version that is installed here. Wheels of torch differ by platform, so no local versions.
constraints: $(INSTALLED)
	$(BIN)/python -m pip freeze --exclude-editable --exclude fl-privquant | sed 's/+.*//' > constraints.txt

clean:
	rm -rf $(VENV) outputs dist

$(VENV)/.created:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.11")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	touch $@

$(RUNNABLE): $(VENV)/.created pyproject.toml constraints.txt
	$(INSTALL) '.[simulation]'
	touch $@

$(INSTALLED): $(VENV)/.created pyproject.toml constraints.txt
	$(INSTALL) '.[dev,simulation]'
	touch $@ $(RUNNABLE)

# `make run` and `make test` set everything up themselves; nothing but Python 3.11+ and make is assumed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: run test lint suite clean

run: $(INSTALLED)
	$(BIN)/python -m simulations.run experiment=default mechanism=optm secagg=on
	$(BIN)/python -m simulations.run -m experiment=default hydra/launcher=joblib hydra.launcher.n_jobs=2

test: $(INSTALLED) lint suite

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check fl_privquant simulations tests
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

suite: $(INSTALLED)
	$(BIN)/pytest -n 2

clean:
	rm -rf $(VENV) outputs

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.11")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,simulation]'
	touch $@

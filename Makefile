# The two commands of the README are `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test lint types wheel docs clean

demo: $(VENV)/.installed
	$(BIN)/sicl demo

test: $(VENV)/.installed-dev lint types docs
	# One thread a process and two processes: small tensors gain nothing from threads that wait for each other.
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m "not slow and not gpu"

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed-dev
	$(BIN)/mypy

# Fails when the generated command reference is not the one in the tree.
docs: $(VENV)/.installed-dev
	$(BIN)/python -m sicl.cli.reference --check docs/cli.md

wheel: $(VENV)/.installed-dev
	$(BIN)/pip wheel --quiet --no-deps --wheel-dir dist .

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# Not editable: tests and demo run what a user would install. Any change of a source file installs anew.
SOURCES := $(shell find src -type f -not -name '*.pyc' 2>/dev/null)

$(VENV)/.installed: $(VENV)/bin/python pyproject.toml constraints.txt $(SOURCES)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt --upgrade-strategy only-if-needed .
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) dist build sicl-demo sicl-runs

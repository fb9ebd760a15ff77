# The two commands of the README are `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
MODELS := .venv-models

.PHONY: demo test lint types wheel docs figures site test-models architectures release-check clean

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

# The figures of the concept pages.
figures: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python docs/figures.py

# The documentation site; a broken link or reference, or a public name without a reference, is an error.
site: $(VENV)/.installed-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	$(BIN)/python docs/names.py site

# Real networks of timm and torchvision, in an environment of their own: several GB, on the CPU.
test-models: $(MODELS)/.installed
	OMP_NUM_THREADS=1 $(MODELS)/bin/python -m pytest -n 2 -m models tests/models_real

architectures: $(MODELS)/.installed
	OMP_NUM_THREADS=1 $(MODELS)/bin/python tests/models_real/table.py

# Wheel and sdist, checked; the wheel, made from the sdist, runs in a clean environment without the repository, and the
# sdist holds what its own tests need.
release-check: $(VENV)/.installed-dev
	rm -rf dist build/clean build/sdist
	$(BIN)/python -m build --outdir dist .
	$(BIN)/python -m twine check --strict dist/*
	$(PYTHON) -m venv build/clean
	build/clean/bin/pip install --quiet --disable-pip-version-check -c constraints.txt dist/*.whl
	cd build/clean && ./bin/sicl doctor && ./bin/sicl demo --images 64 --corruptions contrast --calibrators softmax,sicl --out demo
	mkdir -p build/sdist
	tar -xzf dist/*.tar.gz -C build/sdist --strip-components 1
	cd build/sdist && $(abspath $(BIN))/python -m pytest --quiet --collect-only -m "not slow and not gpu" > /dev/null
	cd build/sdist && OMP_NUM_THREADS=1 $(abspath $(BIN))/python -m pytest --quiet tests/test_docs_code.py tests/test_public_api.py

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

$(MODELS)/.installed: pyproject.toml $(SOURCES)
	test -x $(MODELS)/bin/python || $(PYTHON) -m venv $(MODELS)
	$(MODELS)/bin/pip install --quiet --disable-pip-version-check -r tests/models_real/requirements.txt .
	touch $@

clean:
	rm -rf $(VENV) $(MODELS) site dist build sicl-demo sicl-runs

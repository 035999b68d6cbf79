PYTHON ?= python3
# Processes for the tests, and further arguments for demo, bench and the test runs.
JOBS ?= 2
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
PYTEST := $(BIN)/python -m pytest -n $(JOBS)

OTHER := Ostraka needs Python 3.11 or newer: make PYTHON=/path/to/python
stop = { echo "$(1)" >&2; exit 1; }

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test check soak bench fmt clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-6s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(STAMP) ## Run a round with attackers in it and show what happens
	@$(BIN)/ostraka demo $(ARGS)

test: $(STAMP) ## Run all tests, with sampled counts
	$(PYTEST) -m "not soak" $(ARGS)

check: $(STAMP) ## Formatting, lint, types, import contracts and the fast tests: before every commit
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(PYTEST) -m "not soak and not slow" $(ARGS)

soak: $(STAMP) ## Run all tests, with full counts: takes long
	OSTRAKA_SOAK=1 $(PYTEST) -m "" $(ARGS)

bench: $(STAMP) ## Measure the kernels
	@$(BIN)/ostraka bench kernels $(ARGS)

fmt: $(STAMP) ## Format the code and fix what ruff can fix
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## Remove .venv, caches and built packages
	rm -rf $(VENV) build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamp goes before the work starts and returns when all of it is done. Without it the
# environment is of unknown state, and is made anew.
$(STAMP): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || $(call stop,$(PYTHON) was not found. $(OTHER))
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| $(call stop,$(PYTHON) is $$($(PYTHON) --version 2>&1). $(OTHER))
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
		|| $(call stop,$(PYTHON) has no venv module; on Debian it is in the package python3-venv)
	@echo "setting up $(VENV)" >&2
	@test -e $@ || $(PYTHON) -m venv --clear $(VENV)
	@rm -f $@
	@$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

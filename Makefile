PYTHON ?= python3
# Processes for the tests, and further arguments for demo, bench and the test runs.
JOBS ?= 2
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
CORE := $(VENV)/.ready
STAMP := $(VENV)/.ready-dev
MUTANTS := $(VENV)/.ready-mutants
# The tools of a release stay out of the environment that is tested.
DIST := .venv-dist
PYTEST := $(BIN)/python -m pytest -n $(JOBS)
# Not quiet: what is large takes minutes, and pip shows that it is alive.
PIP = $(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt

comma := ,
stop = { echo "$(1)" >&2; exit 1; }
OTHER := or run make PYTHON=/path/to/python

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test check soak mutants bench dist docs pictures test-env proto vectors fmt clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(CORE) ## Watch a federation on this machine learn under attack
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

mutants: $(MUTANTS) ## Break the code in 500 places, and see which of them no test notices: takes an hour
	$(BIN)/python tools/mutants.py $(ARGS)

bench: $(CORE) ## Measure the stages of a round, and compare them with benchmarks/baseline.json
	@$(BIN)/ostraka bench check $(ARGS)

dist: $(DIST)/.ready ## Build the packages twice, compare them, and put them into dist/ with SBOM and SHA256SUMS
	$(DIST)/bin/python tools/dist.py $(ARGS)

docs: $(STAMP) ## Build the documentation site into site/
	$(BIN)/python tools/build_docs.py

pictures: $(STAMP) ## Draw the pictures of the documents anew, and run the notebook
	$(BIN)/python tools/pictures.py
	$(BIN)/python tools/notebook.py

test-env: $(STAMP) ## Set up .venv with everything that tests and examples need

proto: $(STAMP) ## Generate the transport's code from its schema
	$(BIN)/python -m grpc_tools.protoc -I src --python_out=src --pyi_out=src --grpc_python_out=src \
		src/ostraka/transport/ostraka.proto

vectors: $(STAMP) ## Write the known-answer vectors of the wire anew
	PYTHONPATH=tools $(BIN)/python -m wire_vectors

fmt: $(STAMP) ## Format the code and fix what ruff can fix
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## Remove .venv, caches and built packages
	rm -rf $(VENV) $(DIST) build dist site src/ostraka/core/loops/_native.so .cache .hypothesis .import_linter_cache .mutants .mypy_cache .pytest_cache .ruff_cache
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

# A stamp goes before the work starts and returns when all of it is done. Without it the
# environment is of unknown state, and is made anew.
# The loops in C are built by the installation, so it is repeated when they change.
$(CORE): pyproject.toml constraints.txt hatch_build.py src/ostraka/core/loops/native.c
	@command -v $(PYTHON) >/dev/null || \
		$(call stop,$(PYTHON) was not found: install Python 3.11 or newer$(comma) $(OTHER))
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		$(call stop,Python 3.11 or newer is needed; $(PYTHON) is $$($(PYTHON) --version 2>&1): install one$(comma) $(OTHER))
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
		$(call stop,$(PYTHON) has no venv module: install it (on Debian$(comma) the package python3-venv))
	@echo "setting up $(VENV) (a minute or more: PyTorch is large)" >&2
	@test -e $@ || $(PYTHON) -m venv --clear $(VENV)
	@rm -f $@ $(STAMP)
	@$(PIP) -e '.[lab]'
	@touch $@

$(STAMP): $(CORE)
	@echo "installing the tools for tests and checks (a minute or more)" >&2
	@rm -f $@
	@$(PIP) -e '.[dev]'
	@touch $@

$(DIST)/.ready: pyproject.toml constraints.txt
	@echo "installing the tools for packages" >&2
	@$(PYTHON) -m venv --clear $(DIST)
	@$(DIST)/bin/python -m pip install --disable-pip-version-check -c constraints.txt $$($(PYTHON) tools/dist.py --tools)
	@touch $@

$(MUTANTS): $(STAMP)
	@rm -f $@
	@$(PIP) -e '.[mutants]'
	@touch $@

# Each target sets up what it needs, once: .venv and its packages, then the jars. The stamps in .venv tell make what is
# done, so that a run with nothing to do starts neither Python nor Java.

PYTHON ?= python3
ARGS ?=
WORKERS ?= 2
MINUTES ?= 3
VENV := .venv
PACKAGES := $(VENV)/.tidings-packages
JARS := $(VENV)/.tidings-jars

.DEFAULT_GOAL := help
.PHONY: help demo test lint bench soak fuzz mutants audit pictures docs package clean
.DELETE_ON_ERROR:

help: ## what can be made (this list)
	@echo "tidings: make <target>"
	@grep -E '^[a-z]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{ printf "  %-8s %s\n", $$1, $$2 }'

demo: $(JARS) ## streams, queries, subscribers and clients, and what happens when things die; KEEP=1 leaves the console open
	@echo "demo: updates from producers to a Spark query, subscribers and clients, in a temporary folder"
	@$(VENV)/bin/python examples/demo.py $(if $(KEEP),--keep) $(ARGS)

test: $(JARS) ## all tests, two at a time; FAST=1 leaves out the slow ones, COVERAGE=1 measures, ARGS="-k word" goes to pytest
	@echo "test: $(if $(FAST),all but the slow tests,all tests)"
	@$(VENV)/bin/python -m pytest -n $(WORKERS) --dist worksteal $(if $(FAST),-m "not slow") $(if $(COVERAGE),--cov --cov-report=term) $(ARGS)

lint: $(PACKAGES) ## format and rules (ruff), types (mypy), who imports whom (import-linter), what the pages say of the code
	@echo "lint: ruff"
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/ruff check .
	@echo "lint: mypy"
	@$(VENV)/bin/mypy
	@echo "lint: layers"
	@$(VENV)/bin/lint-imports --no-logo --no-cache
	@echo "lint: faults, guarantees and pages that name code"
	@$(VENV)/bin/python -m pytest -q tests/core/test_mutants.py tests/core/test_guarantees.py tests/core/test_architecture.py

bench: $(JARS) ## all benchmarks; ONLY=<name> one of them, QUICK=1 in under a minute
	@echo "bench: $(or $(ONLY),all)$(if $(QUICK), (quick))"
	@$(VENV)/bin/python -m bench $(ONLY) $(if $(QUICK),--quick) $(ARGS)

soak: $(JARS) ## everything at once under random faults, watched from outside; MINUTES=3, SEED=<number> repeats a plan of faults
	@echo "soak: $(MINUTES) minutes of faults"
	@$(VENV)/bin/python -m tests.soak --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(ARGS)

fuzz: $(PACKAGES) ## messages that are almost right, said to publishers and subscribers; MINUTES=3, SEED=<number> repeats it
	@echo "fuzz: $(MINUTES) minutes"
	@$(VENV)/bin/python -m tests.fuzz.wire $(or $(SEED),$(shell date +%s)) $$(($(MINUTES) * 60))

mutants: $(JARS) ## faults put into a copy of the code, one at a time: which test finds each; ONLY=<name> one of them
	@echo "mutants: $(or $(ONLY),all)"
	@$(VENV)/bin/python -m tests.mutants $(ONLY)

audit: $(PACKAGES) ## known holes in the packages and jars that are used
	@echo "audit: packages and jars"
	@$(VENV)/bin/python -m tests.audit

pictures: $(PACKAGES) ## the pictures of the console in docs/pictures, in a minute or two (needs Chromium)
	@echo "pictures: docs/pictures"
	@$(VENV)/bin/python -m tests.support.console_pictures

docs: $(PACKAGES) ## the pages of docs/ as a site with search, into site/
	@echo "docs: site/"
	@NO_MKDOCS_2_WARNING=1 $(VENV)/bin/python -m mkdocs build --strict --quiet

package: $(PACKAGES) ## wheel and sdist, into dist/, once they are checked in an empty environment (downloads packages)
	@echo "package: wheel and sdist"
	@tests/package.sh

clean: ## remove .venv, caches and build output; the jars stay in the user's cache
	@echo "clean: .venv, caches, build output"
	@rm -rf $(VENV) build dist site bench/results .coverage .coverage.* .mypy_cache .pytest_cache .ruff_cache .hypothesis \
		spark-warehouse metastore_db derby.log
	@find core connectors plugins tests bench examples -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "tidings needs Python 3.11 or later: name one with 'make PYTHON=/path/to/python3.11 ...' (PYTHON is '$(PYTHON)' now)." >&2; \
		exit 1; }
	@echo "set-up: $(VENV)"
	@$(PYTHON) -m venv $(VENV)

# A Python that was upgraded under .venv does not make the packages stale: hence the order-only prerequisite.
$(PACKAGES): pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "set-up: packages (the first time this takes a minute or two)"
	@$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -e '.[dev]' -c constraints.txt
	@touch $@

$(JARS): ivy.xml ivy.sha256 $(PACKAGES)
	@echo "set-up: jars"
	@$(VENV)/bin/tidings jars
	@touch $@

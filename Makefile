# One command per task.  `make` alone makes the environment and lists the tasks.
#
# Needs python3 (3.10 or later, with venv) and make; everything else comes from the lock files in requirements/.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Some folders are checked when they exist.
LINTED := $(wildcard trio_grpc tests examples benchmarks docs/conf.py)
TYPED := $(wildcard trio_grpc tests/typing examples/*.py)
# Tests are dealt out among this many processes; JOBS=0 runs them in one, for a debugger.
JOBS ?= auto
PARALLEL := --numprocesses $(JOBS) --dist worksteal
# Each is a little project of its own, with modules named like the other's.
EXAMPLES := $(patsubst %/,%,$(wildcard examples/*/))

.DEFAULT_GOAL := help
.PHONY: help env demo machines test test-interceptors test-lowest check lint typecheck format coverage interop interop-proxies interop-services h2spec simulation bench plots bench-env docs protos lock changelog clean

help: env  ## make the environment and show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-17s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

env: $(READY)

# --no-deps: the lock names everything.  --no-build-isolation: the build backend is in the lock too.
$(READY): requirements/dev.txt pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-deps -r requirements/dev.txt
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@

demo: env  ## run the examples: clients and servers as separate processes
	$(BIN)/python examples/run_demo.py

machines: env  ## three servers behind one name, lost and restarted under load (as root: in network namespaces)
	$(BIN)/python examples/many_machines/demo.py $(ARGS)

test: env  ## run all tests (ARGS="-k name" narrows them)
	$(BIN)/python -m pytest $(PARALLEL) $(ARGS)

test-interceptors: env  ## tests of behaviour again, with interceptors around every call that none of them may notice
	$(BIN)/python -m pytest $(PARALLEL) --interceptors tests/behaviour tests/property $(ARGS)

check: lint typecheck  ## everything that reads the code without running it

lint: env  ## ruff: rules and formatting
	$(BIN)/ruff check $(LINTED)
	$(BIN)/ruff format --check $(LINTED)

typecheck: env  ## mypy strict, pyright strict on what users see
	$(BIN)/mypy $(TYPED)
	@set -e; for example in $(EXAMPLES); do \
		echo "mypy $$example"; MYPYPATH=$$example $(BIN)/mypy $$example; \
	done
	$(BIN)/pyright --project pyproject.toml
	@# This one asks the first python on the path where packages are, and nothing else.
	PATH="$(CURDIR)/$(BIN):$$PATH" pyright --ignoreexternal --verifytypes trio_grpc

format: env  ## let ruff repair and format the code
	$(BIN)/ruff check --fix $(LINTED)
	$(BIN)/ruff format $(LINTED)

coverage: env  ## run all tests and show the lines that none of them reach
	$(BIN)/coverage run -m pytest $(ARGS)
	$(BIN)/coverage report

interop: env  ## the standard interop cases with every peer, installed when missing (ARGS="--peers grpc-go")
	$(BIN)/python -m tests.interop.standard $(ARGS)

h2spec: env  ## the HTTP/2 conformance suite against our server, plaintext and TLS
	$(BIN)/python -m tests.interop.h2spec $(ARGS)

interop-proxies: env  ## the same cases through nginx, haproxy, nghttpx, Envoy, Caddy and Traefik
	$(BIN)/python -m tests.interop.standard.proxies $(ARGS)

interop-services: env  ## health, reflection and channelz asked by grpcurl, buf, grpc_health_probe and grpcio
	$(BIN)/python -m tests.interop.services $(ARGS)

simulation: env  ## an hour of 200 backends and 50 clients in virtual time, with all that can go wrong (ARGS="--seed 2")
	$(BIN)/python -m tests.simulation $(ARGS)

test-lowest: .venv-lowest/.ready  ## all tests with the oldest releases that pyproject.toml allows
	.venv-lowest/bin/python -m pytest $(PARALLEL) $(ARGS)

.venv-lowest/.ready: requirements/lowest.txt pyproject.toml
	@test -x .venv-lowest/bin/python || $(PYTHON) -m venv .venv-lowest
	.venv-lowest/bin/python -m pip install --quiet --no-deps -r requirements/lowest.txt
	.venv-lowest/bin/python -m pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@

bench: env  ## compare with other libraries (ARGS="peers" is the default)
	$(BIN)/python -m benchmarks $(or $(ARGS),peers)

plots: env  ## measure and draw docs/performance/*.svg: a quarter of an hour, on a quiet machine (ARGS="--quick" tries it)
	$(BIN)/python -m benchmarks plots $(ARGS)

bench-env: env  ## what the comparison needs beside: an environment for purerpc (an old h2), the programs of grpc-go
	$(BIN)/python -m benchmarks setup

docs: .venv-docs/.ready  ## build the documentation into docs/_build; a warning is an error
	.venv-docs/bin/python -m sphinx -W -q -b html docs docs/_build

.venv-docs/.ready: requirements/docs.txt pyproject.toml
	@test -x .venv-docs/bin/python || $(PYTHON) -m venv .venv-docs
	.venv-docs/bin/python -m pip install --quiet --no-deps -r requirements/docs.txt
	.venv-docs/bin/python -m pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@

protos: env  ## make the modules of the standard services again
	$(BIN)/python -m tests.support.service_modules

# One resolution for every Python we support; markers say where versions differ.
COMPILE = .venv-lock/bin/uv pip compile --quiet --universal --python-version 3.10 --no-header --no-annotate $(if $(UPGRADE),--upgrade)

lock:  ## resolve the dependency groups into requirements/*.txt (UPGRADE=1 takes the newest of everything)
	@test -x .venv-lock/bin/uv || { $(PYTHON) -m venv .venv-lock && .venv-lock/bin/python -m pip install --quiet uv; }
	$(COMPILE) --group dev --extra tools pyproject.toml -o requirements/dev.txt
	$(COMPILE) --group test --group build --resolution lowest-direct pyproject.toml -o requirements/lowest.txt
	$(COMPILE) --group purerpc -o requirements/purerpc.txt
	$(COMPILE) --group docs --group build pyproject.toml -o requirements/docs.txt

changelog: env  ## show what the next release's notes would say
	$(BIN)/towncrier build --draft

clean:  ## remove environments, caches and builds
	rm -rf .venv .venv-* build dist docs/_build .coverage
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

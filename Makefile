# demo: a real rollout on the real SGLang engine, on the CPU where there is no GPU
# test, lint, bench: what a change has to pass; all of them make the virtual environment that they need
# test-ray, test-trainers: the real Ray, the real trainers, in environments of their own below .envs
# test-gpu: on a machine with one, by a PYTHON that has torch with CUDA, msgspec, orjson, pytest (polars for one of them)
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
DEMO := sglang_instrument/demo
DEMO_ARGS ?=

.PHONY: demo test test-ray test-trainers test-gpu lint bench

demo: $(VENV)/.demo
	EXPERIMENT_NAME=$${EXPERIMENT_NAME:-demo} $(BIN)/sglang-instrument demo $(DEMO_ARGS)

test: $(VENV)/.demo $(VENV)/.develop
	-PYTHON=$(BIN)/python tests/environments/router.sh
	$(BIN)/python -m pytest

test-ray:
	tests/environments/ray.sh
	.envs/ray/bin/python -m pytest tests/test_ray.py tests/test_reach_ray.py

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

bench: $(VENV)/.develop
	$(BIN)/python -m pytest benchmarks

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Python 3.10 or newer is needed: make PYTHON=...")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.package: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[analysis]'
	touch $@

$(VENV)/.develop: $(VENV)/.package
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[analysis,report,profiling,test,lint]'
	touch $@

$(VENV)/.demo: $(DEMO)/requirements.txt $(DEMO)/requirements-nodeps.txt | $(VENV)/.package
	@echo "installing SGLang and PyTorch into $(VENV): about 2.5 GB, once"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement $(DEMO)/requirements.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --requirement $(DEMO)/requirements-nodeps.txt
	touch $@

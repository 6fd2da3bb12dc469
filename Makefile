# demo: a real rollout on the real SGLang engine, on the CPU if there is no GPU
# native: compile the .pyx files that changed, if there is a compiler
# test, lint, bench: the checks that a change must pass; each makes the virtual environment that it needs
# test-ray, test-trainers: tests with the real Ray and the real trainers, in separate environments below .envs
# test-collect: `collect` with a real S3 server and a real sshd
# test-mlflow: `export --otlp` with a real receiver, MLflow's server
# wheels: an sdist and a manylinux wheel for each Python of PYTHONS, in dist/, installed and tried
# test-gpu: on a machine with a GPU, by a PYTHON with CUDA torch, msgspec, orjson, pytest (and polars for one test)
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
DEMO := sglang_instrument/demo
DEMO_ARGS ?=
INSTALL := tests/environments/install.sh $(BIN)/python
ENVIRONMENTS := ray router storage sshd mlflow sglang verl verl_server areal trackers prometheus
# One process more than cores, as many tests wait, but at most 8: each may run an engine, and memory is limited. Tests
# that share an engine run in one process: tests/conftest.py makes the groups, and puts the longest first.
PROCESSES ?= $(shell echo $$(($$(getconf _NPROCESSORS_ONLN) + 1)))
PARALLEL := --numprocesses $(PROCESSES) --maxprocesses 8 --dist loadgroup --no-loadscope-reorder
# Tests start hundreds of processes; with Python's cache, these compile the package once.
# One thread of polars is enough for small tables, and the other cores have tests of their own.
CACHED := env --unset PYTHONDONTWRITEBYTECODE POLARS_MAX_THREADS=1
PYTEST := $(CACHED) $(BIN)/python -m pytest $(PARALLEL)

# Tests of recording and patching, which also run in pure Python, but for those that compiled code does not reach,
# and those that start programs of both kinds themselves.
NOT_PURE := patching/test_anchors.py patching/test_fields.py patching/test_pickling.py \
	patching/test_rewrite.py recording/settings/test_configuration.py recording/settings/test_machine.py \
	patching/test_sites.py patching/test_tables.py patching/test_watched_imports.py recording/contract/test_children.py \
	recording/contract/test_gevent.py recording/contract/test_late_records.py recording/contract/test_out_of_memory.py \
	recording/contract/test_reward_processes.py recording/contract/test_scarce.py recording/contract/test_soak.py \
	recording/keep/test_disk.py recording/keep/test_file_locks.py recording/keep/test_files.py \
	recording/keep/test_hanging_disk.py recording/keep/test_native_lines.py recording/keep/test_regular_files.py
PURE := tests/recording tests/patching tests/startup/test_install.py $(NOT_PURE:%=--ignore tests/%) --deselect \
	tests/recording/contract/test_programs_exceptions.py::test_an_exception_that_another_thread_sets_arrives

.PHONY: demo native test test-ray test-collect test-mlflow test-trainers test-gpu lint bench environments $(ENVIRONMENTS:%=environment-%)

# Compile while the packages are downloaded.
demo: $(BIN)/python
	@$(MAKE) --no-print-directory --jobs 2 $(VENV)/.demo $(VENV)/.native
	EXPERIMENT_NAME=$${EXPERIMENT_NAME:-demo} $(BIN)/sglang-instrument demo $(DEMO_ARGS)

test: $(VENV)/.demo $(VENV)/.develop $(VENV)/.native environment-router environment-prometheus
	$(PYTEST) --ignore tests/trainers
	SGLANG_INSTRUMENT_NATIVE=0 $(PYTEST) $(PURE)

# In one process: a Ray driver joins any cluster that it finds on its machine.
test-ray: environment-ray
	$(CACHED) .envs/ray/bin/python -m pytest tests/on_ray

test-collect: environment-storage environment-sshd $(VENV)/.develop
	$(CACHED) .envs/storage/bin/python -m pytest tests/on_storage
	$(CACHED) $(BIN)/python -m pytest tests/on_ssh

# Without MLflow, the test is skipped.
test-mlflow: environment-mlflow
	@[ ! -f .envs/mlflow/.made ] || $(CACHED) .envs/mlflow/bin/python -m pytest tests/on_mlflow

# SLIME=DIR, MILES=DIR, NEMO=DIR and ROLL=DIR name checkouts whose real rollouts run, too. Without one, its tests are
# skipped and say so.
test-trainers: environments test-ray test-collect test-mlflow $(VENV)/.develop
	$(PYTEST) tests/trainers

test-gpu:
	@$(PYTHON) -c 'import sys, torch; sys.exit(not torch.cuda.is_available() and "no CUDA device for torch " + torch.__version__)'
	PYTHONPATH=.$${PYTHONPATH:+:$$PYTHONPATH} $(PYTHON) -m pytest -p no:cacheprovider -W default tests/gpu

lint: $(VENV)/.demo $(VENV)/.develop
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/.develop $(VENV)/.native
	$(BIN)/python -m pytest benchmarks

PYTHONS ?= python3.10 python3.11 python3.12 python3.13 python3.14
.PHONY: wheels
wheels: $(VENV)/.develop
	tests/release/build.sh dist $(PYTHONS)
	WHEELS=$(CURDIR)/dist $(BIN)/python -m pytest tests/release

# In parallel; existing environments are kept.
environments: $(VENV)/.demo
	@$(MAKE) --no-print-directory --jobs $(words $(ENVIRONMENTS)) $(ENVIRONMENTS:%=environment-%)

$(ENVIRONMENTS:%=environment-%): environment-%: | $(VENV)/.package
	tests/environments/$*.sh

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Python 3.10 or newer is needed: make PYTHON=...")'
	$(PYTHON) -m venv $(VENV)

# Install as pure Python; .native compiles it.
$(VENV)/.package: pyproject.toml | $(BIN)/python
	SGLANG_INSTRUMENT_NATIVE=0 $(INSTALL) --editable '.[report]'
	touch $@

native: $(VENV)/.native

$(VENV)/.native: hatch_build.py $(wildcard sglang_instrument/native/*.p* sglang_instrument/*/*/_[a-z]*.p*) | $(VENV)/.package
	@$(BIN)/python hatch_build.py >/dev/null 2>&1 || \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	touch $@

$(VENV)/.develop: $(VENV)/.package
	$(INSTALL) --editable '.[analysis,report,profiling,test,lint]'
	touch $@

# Install PyTorch separately and first: install.sh chooses its build.
$(VENV)/.demo: $(DEMO)/requirements.txt $(DEMO)/requirements-nodeps.txt | $(VENV)/.package
	@echo "installing SGLang and PyTorch into $(VENV): about 2.5 GB, once"
	$(INSTALL) $$(grep ^torch== $(DEMO)/requirements.txt)
	$(INSTALL) --requirement $(DEMO)/requirements.txt
	$(INSTALL) --no-deps --requirement $(DEMO)/requirements-nodeps.txt
	touch $@

# docs: build the documentation as a site in site/; a broken link is an error
.PHONY: docs
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

$(VENV)/.docs: pyproject.toml | $(VENV)/.package
	SGLANG_INSTRUMENT_NATIVE=0 $(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	touch $@

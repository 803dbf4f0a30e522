# One entry point for people and CI. Each target sets up what it needs; JOBS sets parallelism.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:

JOBS ?= 2
export JOBS

PYTHON_IN_VENV := .venv/bin/python

.PHONY: help setup build demo bench-cpu bench-cuda experiments-smoke golden stubs test test-cpp \
	test-python test-distributed test-libtorch test-asan test-tsan test-install test-cuda test-multi-gpu \
	fuzz-smoke wheel lint format clean distclean

help: ## This list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## Install system and Python packages for development (.venv)
	@scripts/setup.sh dev

build: ## Build the Python package into .venv (editable)
	@scripts/setup.sh run
	@scripts/build_python.sh

demo: build ## Train a small GPT with torch AdamW and with FlashAdamW, and compare
	@$(PYTHON_IN_VENV) demo/run.py

bench-cpu: build ## Time the CPU step beside torch's optimizers
	@$(PYTHON_IN_VENV) -m bench.cpu

bench-cuda: export FLASHOPTIM_CUDA := ON
bench-cuda: build ## Time the GPU step beside torch's and other optimizers
	@$(PYTHON_IN_VENV) -m bench.cuda

experiments-smoke: build ## Run every experiment in small, to see that it works
	@scripts/setup.sh dev
	@$(PYTHON_IN_VENV) -m pytest tests/python/test_experiments.py -n $(JOBS)

test-multi-gpu: export FLASHOPTIM_CUDA := ON
test-multi-gpu: build ## DDP and FSDP2 over NCCL on two GPUs; tests/results/multi-gpu-GPU.json
	@$(PYTHON_IN_VENV) tests/multi_gpu/run.py

test: ## Everything: lint, C++ tests (plain, sanitized, fuzzed), LibTorch, Python tests, the wheel
	@scripts/test.sh lint cpp libtorch asan tsan fuzz python wheel

test-cpp: ## C++ tests
	@scripts/test.sh cpp

test-python: ## Python tests
	@scripts/test.sh python

test-distributed: build ## Python tests on several processes, which test-python runs too
	@scripts/setup.sh dev
	@$(PYTHON_IN_VENV) -m pytest tests/python/distributed -n $(JOBS)

test-libtorch: ## The LibTorch adapter beside the Python package, and the examples on real data
	@scripts/test.sh libtorch

test-asan: ## C++ tests under the address and undefined-behaviour sanitizers
	@scripts/test.sh asan

test-tsan: ## C++ tests under the thread sanitizer
	@scripts/test.sh tsan

fuzz-smoke: ## libFuzzer on what reads files, options and descriptions, 20 s each
	@scripts/test.sh fuzz

wheel: ## Wheel and source distribution into dist/, checked without torch; size and import time
	@scripts/test.sh wheel

test-cuda: ## CUDA tests and compute-sanitizer on this machine's GPU; tests/results/cuda-GPU.json
	@scripts/test_cuda.sh

test-install: ## Build the consumer project of tests/consumer against the installed library
	@scripts/test.sh install

lint: ## clang-format, clang-tidy, ruff, mypy
	@scripts/test.sh lint

format: ## Format C++ and Python in place
	@scripts/setup.sh dev
	@scripts/lint.sh --fix

golden: ## Regenerate the golden vectors from the independent reference
	@scripts/setup.sh dev
	@$(PYTHON_IN_VENV) tests/golden/generate.py

stubs: build ## Regenerate the type stub of the extension module
	@$(PYTHON_IN_VENV) -m nanobind.stubgen -q -m flashoptim_cpp._C \
		-o bindings/python/flashoptim_cpp/_C.pyi

clean: ## Remove build outputs
	@rm -rf build dist .mypy_cache .pytest_cache .ruff_cache .venv/.package

distclean: clean ## Remove build outputs and .venv
	@rm -rf .venv

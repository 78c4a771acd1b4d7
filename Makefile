# Everything runs in .venv, which `make setup` builds from pyproject.toml and constraints.txt.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DONE := $(VENV)/.installed

.PHONY: help setup demo docs test static sanitize fuzz mutants wheel release check format schemas charts collector clean

MINUTES ?= 60
CPP := src/opscope/readers/native/kineto.cpp src/opscope/analysis/structure/native/nesting.cpp \
	src/opscope/analysis/replay/native/replay.cpp
COLLECTOR := $(wildcard src/opscope/collect/cuda/native/*)
ALL_CPP := $(CPP) $(COLLECTOR) fuzz/coverage.cpp $(wildcard tests/data/collector/*)

help:  ## Show the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: $(DONE)  ## Make .venv with opscope and everything that development needs (skipped when it is current)

$(DONE): pyproject.toml constraints.txt hatch_build.py src/opscope/trace/columns.h $(CPP)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "opscope needs Python 3.11 or newer, $(PYTHON) is older: make $(MAKECMDGOALS) PYTHON=python3.11"; exit 3; }
	@echo "Making .venv: PyTorch and the tools are installed, which takes two to five minutes ..."
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt \
		--editable '.[torch,models,pandas,plot,ranks,mcp,cuda,triton,docs,dev]'
	@touch $(DONE)

demo: setup  ## Profile BERT on the GPU if there is one, else on the CPU, and say where the reports are
	$(BIN)/opscope profile bert --batch-sizes 1 8 --seq-lens 128
	@$(BIN)/python -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' || { \
		echo; echo "This machine has no GPU that PyTorch can use. A training step that was recorded on an H200:"; \
		$(BIN)/opscope analyze examples/training_step.json.xz --top 3; }

test: setup  ## Run all tests; those that need a GPU are skipped where there is none
	$(BIN)/python -m pytest --numprocesses auto --dist loadfile --no-loadscope-reorder

static: setup  ## Check format, lint, types, import rules and words
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/clang-format --dry-run --Werror $(ALL_CPP)
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/page_scripts.py --check
	$(BIN)/python tools/check_words.py

sanitize: setup  ## Run the tests of readers on C++ built with AddressSanitizer and UndefinedBehaviorSanitizer
	$(BIN)/python tools/sanitized_tests.py

fuzz: setup  ## Attack readers and analyses for MINUTES (60 unless told)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt atheris
	$(BIN)/python tools/fuzz.py $(MINUTES) $(FUZZ_OPTIONS)

mutants: setup  ## Change code at random, and see whether its tests notice: a few changes of a room whose tests are fast
	$(BIN)/python tools/mutate.py collect/script/phases.py --count 20 --seed 2 --tests tests/collect/test_phases.py

wheel: setup  ## Build the wheel, install it into an empty environment, and run its commands
	$(BIN)/python tools/check_wheel.py

release: setup  ## Build the wheels and the sources of a release into dist/, and try them; nothing is published
	$(BIN)/python tools/release.py

check: setup  ## Check what belongs to the files that changed since SINCE (HEAD unless told); .ci/run checks everything
	$(BIN)/python tools/check_changed.py $(SINCE)

format: setup  ## Format the code and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/clang-format -i $(ALL_CPP)
	-$(BIN)/python tools/page_scripts.py

docs: setup  ## Build the documentation as a site in build/docs; warnings are errors
	$(BIN)/python -m sphinx -q -W --keep-going -E -b html docs build/docs
	@echo "build/docs/index.html"

schemas: setup  ## Write anew what is made from the code: JSON schemas, the table of rules, the table and picture of rooms
	$(BIN)/python tools/build_schemas.py docs/schema
	$(BIN)/python tools/build_rules.py
	$(BIN)/python tools/build_rooms.py

charts: setup  ## Bundle the chart library of the page anew, from its pinned package (needs npm)
	$(BIN)/python tools/build_charts.py

collector: setup  ## Build what opscope exec loads into programs (it builds it itself when it is first needed)
	$(BIN)/python -m opscope.collect.cuda.command

clean:  ## Remove the environment and all caches
	rm -rf $(VENV) build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

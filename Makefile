# hypatia_lab: `make book` measures this machine and builds the book, `make test` checks everything.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory
PYTHON ?= python3
BIN := .venv/bin
EXTRAS := run,egraph,book,test,$(if $(shell command -v nvidia-smi),gpu,interpreter)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Containers often forbid bytecode, which triples what every process takes to start. Written when a module is first
# imported, it serves the command outside make too.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help book pdf test lint style types unit unit-1 unit-2 unit-3 gpu sweep pages nbval committed notebooks clean

help: ## list what can be made
	@awk -F ':.*## ' '/^[a-z.]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.venv/installed: pyproject.toml constraints.txt
	@echo "installing into .venv (a minute or two) ..."
	@$(PYTHON) -c 'import sys; ok = (3, 11) <= sys.version_info < (3, 14); sys.exit(not ok and f"Python 3.11 to 3.13 is needed, this is {sys.version.split()[0]}: make PYTHON=python3.12 ...")'
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install -q --no-compile -c constraints.txt -e '.[$(EXTRAS)]'
	@touch $@

.venv: .venv/installed ## install everything that is needed into .venv

# Minutes that `make book` measures; the next one goes on where it stopped.
MINUTES ?= 6

book: .venv/installed ## build _build/html/index.html, measure this machine for MINUTES=6, and build what that changes
	@start=$$SECONDS; status=0; \
	$(BIN)/hypatia-lab book $(MEASURED); \
	echo "the book stands after $$((SECONDS - start)) s: open _build/html/index.html; measuring this machine for $(MINUTES) minutes"; \
	$(BIN)/hypatia-lab run --preset quick --device auto --minutes $(MINUTES) --records _build/records --output _build/notebooks || status=$$?; \
	$(BIN)/hypatia-lab book --notebooks _build/notebooks --records _build/records; \
	echo "took $$((SECONDS - start)) s; open _build/html/index.html"; \
	if [ $$status -ne 0 ]; then echo "not every notebook could be measured here (above); the committed ones stand in" >&2; fi; \
	exit $$status

MEASURED := $(if $(wildcard _build/notebooks),--notebooks _build/notebooks --records _build/records)

pdf: .venv/installed ## the same book with all of it as one PDF, which Chromium prints: _build/html/book.pdf
	@$(BIN)/hypatia-lab book --pdf $(MEASURED)

# Tests share the cores: threads that wait for work sleep instead of keeping a core busy. Pages get one: that several
# threads agree is held by unit tests.
test unit unit-1 unit-2 unit-3 gpu sweep pages nbval: export OMP_WAIT_POLICY := passive
pages nbval: export OMP_NUM_THREADS := 1

test: style ## style, types, unit tests, notebooks against records, the committed book in a browser
	@$(MAKE) -j3 --output-sync=line unit-2 unit-1 unit-3 nbval pages types

lint: style types ## style and types

style: .venv/installed
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: .venv/installed
	@$(BIN)/pyright

# Only notebooks need nbval, which takes a second to load.
TESTS := $(BIN)/pytest -q -p no:nbval

UNITS := $(filter-out tests/test_book.py,$(wildcard tests/test_*.py))
# Three parts that take about as long as each other.
UNITS_1 := $(filter $(foreach letter,a b c d,tests/test_$(letter)%),$(UNITS))
UNITS_3 := $(filter $(foreach letter,p q r s t u v w x y z,tests/test_$(letter)%),$(UNITS))
UNITS_2 := $(filter-out $(UNITS_1) $(UNITS_3),$(UNITS))

unit: unit-1 unit-2 unit-3 ## unit tests

unit-1 unit-2 unit-3: unit-%: .venv/installed
	@$(TESTS) $(UNITS_$*) -m "not sweep and not slow"

# What is timed has the GPU to itself; all else may share it.
SHARED = $(shell $(BIN)/python -c 'import xdist' 2> /dev/null && echo -n auto --dist loadfile)

gpu: .venv/installed ## what needs a CUDA GPU: every test marked cuda
	@$(BIN)/pytest -q tests $(SHARED) -m "cuda and not slow and not sweep"
	@$(BIN)/pytest -q tests -m "cuda and slow and not sweep"

sweep: .venv/installed ## slow tests, and long sweeps of what the unit tests try in part
	@$(BIN)/pytest -q tests -m "sweep or slow"
	@HYPATIA_EXAMPLES=1000 $(BIN)/pytest -q tests/test_own_book.py -k "template_is or says_is or whatever"

pages: .venv/installed ## the committed book in a browser
	@$(TESTS) tests/test_book.py -m "not slow"

nbval: .venv/installed ## every committed notebook against its records
	@$(BIN)/pytest -q --nbval notebooks

committed: .venv/installed ## build the book of the committed notebooks: _build/committed/html
	@$(BIN)/python -c 'from pathlib import Path; from hypatia_lab.book import build; print(build.build(output=Path("_build/committed/html")))'

STRIP := $(BIN)/nbstripout --keep-output --keep-count --keep-id --extra-keys "metadata.papermill cell.metadata.papermill cell.metadata.execution metadata.language_info.version"

notebooks: .venv/installed ## run the committed notebooks again (recorded mode), in place
	@for notebook in notebooks/*.ipynb; do \
	  echo "$$notebook"; \
	  $(BIN)/papermill --cwd notebooks --no-progress-bar --log-level ERROR "$$notebook" "$$notebook"; \
	done
	@$(STRIP) notebooks/*.ipynb

clean: ## remove what was built; .venv stays
	@rm -rf _build

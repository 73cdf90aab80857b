# `make demo` shows everything on this machine; `make test lint page-check proto-check wheel-check` is what CI runs.

VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
# The name holds a hash of what is to be installed: set-up runs again when that changes, and only then.
STAMP := $(VENV)/.holdfast-$(shell cat pyproject.toml constraints.txt setup.py agent/sampling/sweep.c | sha256sum | cut -c1-16)
PYTEST_ARGS ?=
# Most of trainer and controller take as long as all others, and no two tests that start agents run at once. Rows are
# measured once for their own tests and for those of the documentation: they run together.
BUSY := $(filter-out tests/trainer/rows/,$(sort $(dir $(wildcard tests/trainer/*/test_*.py tests/controller/*/test_*.py))))
# Collecting all costs each run as much as many tests: tests/conftest.py sees to it that no slow one is elsewhere.
SLOW_FILES = $(shell grep -rlF --include='test_*.py' mark.slow tests)
# Nor are files collected in which each test is for another run.
SLOW_HERE = $(shell grep -LE '^pytestmark = .*mark\.(aside|calm)' $(SLOW_FILES))
SLOW_AND = $(shell grep -rlF --include='test_*.py' mark.slow tests | xargs grep -lF mark.$(1))
SIDE = $(BIN)/python .ci/side_by_side.py
FAST_OTHERS = -m "not slow" $(BUSY:%=--ignore %)
FAST_BUSY = -m "not slow" $(BUSY)
FAST = $(SIDE) $(FAST_OTHERS) --beside $(FAST_BUSY)
CALM = $(call SLOW_AND,calm)
# What waits runs beside the jobs, in two halves, and what only computes takes what they leave of the processors.
ALL = $(SIDE) -m "slow and not aside and not calm" $(SLOW_HERE) \
  --beside $(FAST_OTHERS) --then -m "slow and calm" $(filter tests/e2e/%,$(CALM)) \
  --beside $(FAST_BUSY) --then -m "slow and calm" $(filter-out tests/e2e/%,$(CALM)) \
  --beside --idle -m "slow and aside" --timeout 900 $(call SLOW_AND,aside)

# Tests start a thousand processes: without bytecode each would compile the sources anew.
test fast: export PYTHONDONTWRITEBYTECODE =

.PHONY: setup demo test fast mutants model rows gallery pictures lint format docs proto proto-check page-check wheel-check clean

setup: $(STAMP)

$(STAMP):
	bash .ci/setup "$(VENV)" "$(PYTHON)" "$(STAMP)"

demo: setup
	$(BIN)/holdfast demo $(DEMO_ARGS)

# With arguments: those tests, slow or not.
test: setup
ifeq ($(strip $(PYTEST_ARGS)),)
	$(ALL)
else
	$(BIN)/python -m pytest $(PYTEST_ARGS)
endif

fast: setup
ifeq ($(strip $(PYTEST_ARGS)),)
	$(FAST)
else
	$(BIN)/python -m pytest -m "not slow" $(PYTEST_ARGS)
endif

lint: setup
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	PATH="$(CURDIR)/$(BIN):$$PATH" lint-imports

# Small faults in pure code, one at a time: those that no test notices. MUTANTS_ARGS="policy --sample 100"
mutants: setup
	$(BIN)/pip install --quiet -c constraints.txt -e '.[mutants]'
	$(BIN)/python .ci/mutants.py $(MUTANTS_ARGS)

# Every way in which a small job may stand, against the judge of hangs, for so many seconds of processor time.
MODEL_SECONDS ?= 900
model: setup
	HOLDFAST_MODEL_SECONDS=$(MODEL_SECONDS) $(BIN)/python -m pytest -q -s tests/diagnostics/hang/test_dead_model.py -k whole

# What the source of each training technique says, and what comes out here.
rows: setup
	$(BIN)/holdfast rows

# Every situation on every surface, as build/gallery/index.html and docs/gallery.md.
gallery: setup
	HOLDFAST_GALLERY=build/gallery $(BIN)/python -m pytest -q tests/gallery
	$(BIN)/python -m tests.gallery.album build/gallery docs

# The pictures of README.md and docs/page.md.
pictures: setup
	$(BIN)/python -m tests.gallery.pictures docs/images

format: setup
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

docs: setup
	$(BIN)/python docs/generate.py
	$(BIN)/holdfast dashboards export deploy/monitoring

proto: setup
	bash .ci/protoc "$(CURDIR)/$(BIN)" .

proto-check: setup
	bash .ci/proto-check "$(CURDIR)/$(BIN)"

page-check: setup
	bash .ci/page-check "$(CURDIR)/$(BIN)"

wheel-check: setup
	bash .ci/wheel-check "$(CURDIR)/$(BIN)/python"

clean:
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

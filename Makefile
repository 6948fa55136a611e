# The commands of this project; CONTRIBUTING.md explains them. All that they install goes to .venv.
#
#   make demo                      install what is needed, then let the demo model answer
#   make install PYTHON=python3.12 with a Python of your choice (default: the first good one below)
#   make install TORCH_INDEX=https://download.pytorch.org/whl/cpu
#                                  torch without CUDA: 200 MB instead of several GB (Linux x86-64)
#   make test                      all checks and the tests, as CI runs them

CANDIDATES = python3 python3.13 python3.12 python3.11 python3.14
TORCH_INDEX =
JOBS = 2

VENV = .venv
BIN = $(VENV)/bin
PIP = $(BIN)/python -m pip --disable-pip-version-check
# torch would start a thread for each core in each of the JOBS processes, and have them spin
THREADS = OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE
PYTEST = $(THREADS) $(BIN)/python -m pytest -n $(JOBS) --dist worksteal

.PHONY: help install install-dev demo check test test-all selftest clean

help:
	@sed -n '1,/^$$/s/^# \{0,1\}//p' Makefile

install: $(VENV)/.installed

install-dev: $(VENV)/.installed-dev

demo: install
	$(BIN)/python examples/demo.py

check: install-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# A slow test runs here only if it is also marked `sample`.
test: check
	$(PYTEST) -m "not gpu and (not slow or sample)"

test-all: check
	$(PYTEST) --hypothesis-profile all

selftest: install
	$(BIN)/deepinfer selftest

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	rm -rf .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The .installed files say when it was done: newer than pyproject.toml means nothing to do.
$(VENV)/.installed: pyproject.toml | $(BIN)/python
	@test -z "$(TORCH_INDEX)" || $(PIP) install --index-url "$(TORCH_INDEX)" "$$($(TORCH_RANGE))"
	$(PIP) install --editable .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP) install --editable ".[dev]"
	@touch $@

TORCH_RANGE = $(BIN)/python -c 'import tomllib; \
project = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
print(next(d for d in project["dependencies"] if d.startswith("torch")))'

# The first candidate that starts, is a version that torch has builds for, and can make an
# environment. (A name may exist and not start, as with pyenv; Debian's python3 lacks ensurepip.)
PYTHONS = $(or $(PYTHON),$(CANDIDATES))
IS_VERSION = import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))
NO_VERSION = error: no Python 3.11 to 3.14 among: $(PYTHONS); \
install one, or say make PYTHON=/path/to/python
NO_VENV = cannot make an environment (no module ensurepip); \
Debian, Ubuntu: apt install python3-venv

$(BIN)/python:
	@good= ; bare= ; for p in $(PYTHONS); do \
	  "$$p" -c '$(IS_VERSION)' 2>/dev/null || continue; \
	  if "$$p" -c 'import venv, ensurepip' 2>/dev/null; then good=$$p; break; fi; \
	  bare=$${bare:-$$p}; \
	done; \
	if test -n "$$good"; then echo "$$good -m venv $(VENV)"; "$$good" -m venv $(VENV); \
	elif test -n "$$bare"; then echo "error: $$bare $(NO_VENV)" >&2; exit 1; \
	else echo "$(NO_VERSION)" >&2; exit 1; fi

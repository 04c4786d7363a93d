# Everything that a fresh machine needs is made by the targets themselves.
PYTHON ?= python3
VENV := .venv
# What users have, without any of the tools of development: part of the tests runs a server there.
ALONE := .venv-install
BIN := $(VENV)/bin
# pip would compile every file of every library, two minutes of a core, where a tenth is ever
# imported: the first import of a module compiles it instead, and has to be allowed to keep that.
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --no-compile
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test test-vllm check format bench bench-peers install install-dev install-alone \
  system-packages clean

demo: install
	$(BIN)/stoker demo

test: system-packages install-dev install-alone
	# Many tests wait for servers to start: one process more than cores keeps both busy.
	$(BIN)/pytest -n 3 --no-loadscope-reorder

# The contract of the language models on vLLM, in the interpreter that STOKER_VLLM_PYTHON names or
# in an environment that is made here: some minutes and 2 GB.
VLLM_DATA := $(CURDIR)/.data/test-vllm
test-vllm: install-dev
	@if [ -z "$$STOKER_VLLM_PYTHON" ]; then \
	  export STOKER_VLLM_PYTHON=$(VLLM_DATA)/engines/vllm/bin/python; \
	  [ -e $(VLLM_DATA)/engines/vllm/installed.json ] \
	    || $(BIN)/stoker engines install vllm --cpu --data-dir $(VLLM_DATA) || exit 1; \
	fi; \
	STOKER_TEST_ENGINES=vllm $(BIN)/pytest tests/openai tests/llm/test_vllm.py

# BENCH names those to run, and says how: make bench BENCH="chat --rounds 3".
bench: install-dev
	$(BIN)/python -m bench $(BENCH)

# What the benchmarks compare with, an environment each: some minutes and 8 GB for all of them, or
# those that PEERS names. What is there already is left as it is.
bench-peers: install-dev
	$(BIN)/python -m bench.peers.make $(PEERS)

check: install-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports

format: install-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

install: $(VENV)/.installed
install-dev: $(VENV)/.installed-dev
install-alone:
	@$(MAKE) --no-print-directory install VENV=$(ALONE)

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade pip

# The constraints make an install tomorrow the install of today.
$(VENV)/.installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "Installing Stoker and its libraries into $(VENV); torch takes a minute or two …"
	$(PIP) -c constraints.txt -e .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "Installing Stoker with its development tools into $(VENV) …"
	$(PIP) -c constraints.txt -e '.[dev]'
	# Clients of both versions of the SDK have to work.
	$(PIP) --target $(VENV)/openai-2 --no-deps --upgrade openai==2.54.0 distro==1.9.0
	@touch $@ $(VENV)/.installed

# PostgreSQL for the tests that need it: installed where we may, else those tests say so and skip.
system-packages:
	@command -v initdb >/dev/null || ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 \
	  || { SUDO=; [ "$$(id -u)" = 0 ] || SUDO="sudo -n"; \
	       command -v apt-get >/dev/null \
	         && $$SUDO apt-get -qq update && $$SUDO apt-get -qq install -y postgresql >/dev/null \
	         || echo "PostgreSQL could not be installed: its tests will be skipped."; }

clean:
	rm -rf $(VENV) $(ALONE) .data .pytest_cache .ruff_cache

# Everything that a fresh machine needs is made by the targets themselves.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test bench lint install install-dev system-packages clean

demo: install
	$(BIN)/stoker demo

test: system-packages install-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright stoker
	$(BIN)/lint-imports
	$(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder

bench: install-dev
	$(BIN)/python -m bench $(BENCH)

lint: install-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/pyright stoker

install: $(VENV)/.installed
install-dev: $(VENV)/.installed-dev

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --upgrade pip

# The constraints make an install tomorrow the install of today.
$(VENV)/.installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "Installing Stoker and its libraries into $(VENV); torch takes a minute or two …"
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "Installing Stoker with its development tools into $(VENV) …"
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@ $(VENV)/.installed

# PostgreSQL for the tests that need it: installed where we may, else those tests say so and skip.
system-packages:
	@command -v initdb >/dev/null || ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 \
	  || { SUDO=; [ "$$(id -u)" = 0 ] || SUDO="sudo -n"; \
	       command -v apt-get >/dev/null \
	         && $$SUDO apt-get -qq update && $$SUDO apt-get -qq install -y postgresql >/dev/null \
	         || echo "PostgreSQL could not be installed: its tests will be skipped."; }

clean:
	rm -rf $(VENV) .data .pytest_cache .ruff_cache

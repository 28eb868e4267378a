# Everything happens in .venv, from the versions in requirements/dev.lock. `make run` installs only what the gateway needs; the other
# targets add the rest. `make help` lists the targets.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
RUNNABLE := $(VENV)/.runnable
CHECK_PYTHON := import sys; sys.exit("Python 3.11 or later is needed, this is " + sys.version.split()[0] if sys.version_info < (3, 11) else 0)
NODE_READY := tests/clients/node_modules/.package-lock.json
WEB_READY := tests/web/node_modules/.package-lock.json
AGENTS := tests/agents/node_modules
AGENTS_READY := $(AGENTS)/.package-lock.json
ALL_AGENTS_READY := $(AGENTS)/.all
CORPUS ?= ../shared/corpus
# Processes that run the tests: two for each core of a small machine, because many tests wait for other programs.
TEST_WORKERS ?= 4
# `make quick`: whole folders of what needs no socket, and of each other room the files that cover its common way in a few seconds.
QUICK := tests/dialects tests/framing tests/stages tests/policies tests/engine tests/upstream tests/test_project_rules.py \
    tests/test_grammar.py tests/test_errors.py tests/test_documents.py tests/test_tasks.py tests/inband/test_formats.py \
    tests/inband/test_scenarios.py tests/inspect/test_inspection.py tests/cli/test_question.py tests/client/test_library_client.py \
    tests/gateway/test_gateway_streams.py tests/gateway/test_gateway_keys.py tests/store/test_lookup.py tests/store/test_echoes.py \
    tests/tools/test_tool_sources.py tests/batch/test_batcher.py tests/batch_durable/test_parts.py tests/web/test_overview_page.py
FUZZ_SECONDS ?= 60
FUZZ_SPLITS ?= 1000000
SOAK_SECONDS ?= 120
SOAK_STREAMS ?= 2000
SOAK_WORKERS ?= 2
# The tests start programs several thousand times. Without bytecode files each of them compiles the package and its tests again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help run test quick browser screenshots bench-page check coverage conformance matrix agents bench bench-store bench-batch soak fuzz docs site lock clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(READY): requirements/dev.lock pyproject.toml
	$(PYTHON) -c '$(CHECK_PYTHON)'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $(READY)

$(RUNNABLE): requirements/dev.lock pyproject.toml
	$(PYTHON) -c '$(CHECK_PYTHON)'
	@echo "installing the gateway into $(VENV), once: about 230 MB"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	sed -e 's/ *\\$$//' -e '/^ *--hash/d' requirements/dev.lock > $(VENV)/constraints.txt
	test -e $(READY) || $(BIN)/python -m pip install --quiet --disable-pip-version-check \
	    --constraint $(VENV)/constraints.txt --editable '.[server,local,mcp,policies]'
	touch $(RUNNABLE)

run: $(RUNNABLE) ## fetch the small local model and run the gateway
	-$(BIN)/streamglot local pull
	$(BIN)/streamglot serve

$(NODE_READY): tests/clients/package-lock.json tests/clients/package.json
	@if command -v npm >/dev/null; then npm ci --prefix tests/clients --silent --no-audit --no-fund; \
	else echo "npm is not installed: what is written is NOT CHECKED with the clients in Node"; fi

$(WEB_READY): tests/web/package-lock.json tests/web/package.json
	@if command -v npm >/dev/null; then npm ci --prefix tests/web --silent --no-audit --no-fund; \
	else echo "npm is not installed: the page is NOT CHECKED with axe"; fi

browser: ## install Chromium for the tests of the page, where it is missing and this user may
	@if command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null; then :; \
	elif command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; then apt-get update --quiet=2 && apt-get install --quiet=2 --yes --no-install-recommends chromium; \
	else echo "Chromium is not installed: the page is NOT TESTED in a browser"; fi

$(AGENTS_READY): tests/agents/package-lock.json tests/agents/package.json
	@if command -v npm >/dev/null; then npm ci --prefix tests/agents --omit=dev --silent --no-audit --no-fund; \
	else echo "npm is not installed: nothing is checked with the real coding agents"; fi

$(ALL_AGENTS_READY): tests/agents/package-lock.json tests/agents/package.json
	npm ci --prefix tests/agents --silent --no-audit --no-fund
	touch $(AGENTS_READY) $(ALL_AGENTS_READY)

test: $(READY) $(NODE_READY) $(WEB_READY) $(AGENTS_READY) browser ## run the tests
	$(BIN)/python -m pytest -n $(TEST_WORKERS) --dist worksteal

quick: $(READY) ## the inner loop: the pure half and a smoke test of each room, below a minute
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow" $(QUICK)

check: $(READY) ## ruff, mypy --strict, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Modules beside the pure half that read the machine, and that the tests of other folders cover.
IMPURE := src/streamglot/__main__.py,src/streamglot/config/checks.py,src/streamglot/config*.py,src/streamglot/installation.py,src/streamglot/tasks.py,src/streamglot/plugins.py,src/streamglot/tasks.py,src/streamglot/installation.py

coverage: $(READY) ## branch coverage of the pure half
	$(BIN)/coverage run -m pytest -q -p no:xdist tests/dialects tests/framing tests/inband tests/policies tests/stages tests/test_*.py
	$(BIN)/coverage report --show-missing --skip-covered --fail-under=100 \
	    --include='src/streamglot/*.py,src/streamglot/framing/*,src/streamglot/dialects/*,src/streamglot/inband/*,src/streamglot/stages/*' \
	    --omit='$(IMPURE)'

conformance: $(READY) ## readers and parsers against the corpus in CORPUS=
	$(BIN)/python -m conformance.streams $(CORPUS)
	$(BIN)/python -m conformance.inband $(CORPUS)
	$(BIN)/python -m conformance.state $(CORPUS)
	$(BIN)/python -m conformance.turns $(CORPUS)
	$(BIN)/python -m conformance.matrix $(CORPUS)
	$(BIN)/python -m conformance.examples $(CORPUS)

matrix: $(READY) $(NODE_READY) ## every reader, writer and client over the corpus in CORPUS=; writes docs/conformance.md
	$(BIN)/python -m conformance.matrix $(CORPUS) --node --page docs/conformance.md

agents: $(READY) $(ALL_AGENTS_READY) ## real coding agents on every dialect (half an hour); writes docs/agents.md
	cd tests && ../$(BIN)/python -m agents.run --page ../docs/agents.md

bench: $(READY) ## time per chunk, growth, ratios to the official clients and to nginx (BENCH_PEERS=1: to other gateways), imports
	$(BIN)/python -m bench.core
	$(BIN)/python -m bench.gateway
	$(BIN)/python -m bench.parts
	$(BIN)/python -m bench.inband
	$(BIN)/python -m bench.tools
	$(BIN)/python -m bench.policies
	$(BIN)/python -m bench.imports

bench-page: $(READY) browser ## weight of the page, long tasks and frames at 500 tokens/s, in Chromium
	cd tests && ../$(BIN)/python -m web.bench_page && ../$(BIN)/python -m web.bench_inspector

screenshots: $(READY) browser ## the pictures of the page in docs/pictures
	cd tests && ../$(BIN)/python -m web.screenshots

bench-store: $(READY) ## finished turns a second in the store; what a request costs with up to a million turns (BENCH_TURNS=, BENCH_DATABASE=)
	$(BIN)/python -m bench.store
	$(BIN)/python -m bench.stored

bench-batch: $(READY) ## items a second of durable batches, their memory, and live requests beside them (BENCH_ITEMS=, BENCH_MEMORY=)
	$(BIN)/python -m bench.batch

soak: $(READY) ## SOAK_STREAMS= streams at once with slow readers, hang-ups and faults for SOAK_SECONDS=; then SOAK_WORKERS= and signals
	cd tests && ../$(BIN)/python -m gateway.soak $(SOAK_SECONDS) $(SOAK_STREAMS)
	cd tests && ../$(BIN)/python -m gateway.soak $(SOAK_SECONDS) $(SOAK_STREAMS) $(SOAK_WORKERS)
	cd tests && ../$(BIN)/python -m gateway.soak_signals $(SOAK_SECONDS) $(SOAK_WORKERS)
	cd tests && ../$(BIN)/python -m gateway.soak_policies $(SOAK_STREAMS) 2

fuzz: $(READY) ## random and broken input for FUZZ_SECONDS= each, FUZZ_SPLITS= random splits through every policy
	$(BIN)/python -m tests.fuzz $(FUZZ_SECONDS)
	cd tests && ../$(BIN)/python -m fuzz_http $(FUZZ_SECONDS)
	cd tests && ../$(BIN)/python -m fuzz_upstream $(FUZZ_SECONDS)
	cd tests && ../$(BIN)/python -m fuzz_policies $(FUZZ_SPLITS)
	end=$$(($$(date +%s) + $(FUZZ_SECONDS))); while [ $$(date +%s) -lt $$end ]; do \
	  $(BIN)/python -m pytest -q -n 2 -m hypothesis --hypothesis-profile=random || exit 1; done

docs: $(READY) ## write the generated parts of docs/ anew
	$(BIN)/python -m docs.generate

site: $(READY) ## build the documentation as a site in .build/site, and check its links
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	$(BIN)/python -m docs.site_check .build/site
	$(BIN)/python -m docs.code_blocks

lock: $(READY) ## resolve the versions anew
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip compile pyproject.toml --extra dev --universal --python-version 3.11 --generate-hashes \
	    --no-emit-index-url --no-annotate --no-header --quiet --output-file requirements/dev.lock

clean: ## remove what the targets made
	rm -rf $(VENV) .build .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage

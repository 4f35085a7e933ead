# Two commands on a fresh machine, with nothing set up before but Python 3.11, pip and make:
#   make demo    makes .venv, installs, runs the main job with the dashboard on
#   make test    makes .venv, installs, gets a Chromium if there is none, runs every tier of tests
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin

.PHONY: help demo test test-fast test-slow test-lowest compose-test wheel-test verl-test check format openapi bench clean
.DEFAULT_GOAL := help

help:
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 12

$(BIN)/python:
	$(PYTHON) -m venv .venv

.venv/.installed: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt -e .
	@touch $@

.venv/.installed-dev: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@ .venv/.installed

demo: .venv/.installed ## install and run the main job: RL of a tiny language model, with the dashboard
	$(BIN)/podium demo $(ARGS)

test: .venv/.installed-dev ## install and run every tier of tests
	$(BIN)/python tests/e2e/chromium.py
	$(BIN)/python -m pytest -n 2 --dist loadfile $(ARGS)

test-fast: .venv/.installed-dev ## the quick tiers only: no Ray, no socket, no browser
	$(BIN)/python -m pytest -m "not integration and not e2e" $(ARGS)

test-slow: .venv/.installed-dev ## what takes minutes: the demo changed while it trains, more kills and random changes
	$(BIN)/python tests/e2e/chromium.py
	PODIUM_SLOW=1 PODIUM_FUZZ_FILES=3000 PODIUM_KILLS=20 PODIUM_LIVE_SEQUENCES=200 $(BIN)/python -m pytest tests/e2e/test_demo_steered.py tests/e2e/test_bad_input.py tests/e2e/test_wheel.py \
		tests/integration/test_server_attacked.py tests/integration/test_api_fuzzed.py tests/integration/test_rules_for_real.py \
		tests/e2e/test_hostile_names.py \
		tests/integration/test_store_killed.py tests/integration/test_store_killed_on_ray.py \
		tests/integration/test_deaths_on_nodes.py tests/integration/test_file_fuzz.py \
		tests/unit/test_web_verdicts.py tests/integration/test_live_walks_on_ray.py tests/integration/test_live_nodes_on_ray.py tests/integration/test_direct_on_ray.py --timeout 3600 $(ARGS)

compose-test: .venv/.installed-dev ## build docker-compose.yml's image, train, change pools, stop, view; needs a Docker engine
	PODIUM_SLOW=1 $(BIN)/python -m pytest tests/e2e/test_compose.py -s --timeout 3600 $(ARGS)

wheel-test: .venv/.installed-dev ## install the wheel into an empty environment and run its commands there
	PODIUM_SLOW=1 $(BIN)/python -m pytest tests/e2e/test_wheel.py -s --timeout 3600 $(ARGS)

verl-test: .venv/.installed-dev ## verl's own trainer, unmodified, in an environment of its own with verl 0.9.1
	$(BIN)/python -m venv .venv-verl
	.venv-verl/bin/pip install -q --disable-pip-version-check 'verl==0.9.1' 'tensordict==0.10.0' -e .
	PODIUM_SLOW=1 PODIUM_VERL=$(CURDIR)/.venv-verl/bin/python $(BIN)/python -m pytest tests/e2e/test_verl_sft.py tests/e2e/test_verl_processes.py $(ARGS)

test-lowest: .venv/.installed-dev ## the quick tiers with the lowest versions that pyproject.toml allows, but for torch
	$(BIN)/python -m pip install -q uv
	$(BIN)/python -m venv .venv-lowest
	$(BIN)/python -m pip list --format=freeze | grep '^torch==' > .venv-lowest/torch.txt
	$(BIN)/uv pip compile -q pyproject.toml --extra dev --resolution lowest-direct --override .venv-lowest/torch.txt \
		$${PIP_FIND_LINKS:+--find-links $$PIP_FIND_LINKS} -o .venv-lowest/lowest.txt
	.venv-lowest/bin/pip install -q --disable-pip-version-check -r .venv-lowest/lowest.txt
	.venv-lowest/bin/pip install -q --disable-pip-version-check --no-deps -e .
	.venv-lowest/bin/python -m pytest tests/unit tests/architecture $(ARGS)

check: .venv/.installed-dev ## ruff, mypy --strict, import-linter, migrations equal models
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m app.store.check_migrations
	$(BIN)/mkdocs build --strict -q

format: .venv/.installed-dev ## let ruff format and fix
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: .venv/.installed-dev ## the documentation with its API reference, as a site in build/site
	$(BIN)/mkdocs build --strict -q

openapi: .venv/.installed-dev ## write docs/openapi.json and the table of commands anew after a route or command was changed
	$(BIN)/python -m app.api.write_openapi docs

bench: .venv/.installed-dev ## ratios, side by side in one run
	$(BIN)/python -m benchmarks.run $(ARGS)

clean: ## remove what make made
	rm -rf .venv .venv-lowest .venv-verl .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

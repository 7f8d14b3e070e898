# The two commands of a new user are `make demo` and `make test`; each sets up everything it needs, once.

VENV ?= .venv
TRL_VENV ?= .venv-trl
# The first Python 3.11 found. Name another one with: make test PYTHON=/path/to/python3.11
PYTHON ?= $(shell for p in python3.11 python3 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null && echo $$p && exit; \
	done; echo python3)
# An index with CPU builds of torch, asked when pip's own configuration knows none.
TORCH_INDEX_URL ?= https://download.pytorch.org/whl/cpu
export TORCH_INDEX_URL
ifdef CI
export PIP_PROGRESS_BAR = off
export PIP_NO_INPUT = 1
endif

BIN = $(VENV)/bin
STAMP = $(VENV)/.installed
TRL_STAMP = $(TRL_VENV)/.installed
LOCKS = requirements/cpu.txt requirements/dev.txt

.DEFAULT_GOAL := help
.PHONY: help setup doctor demo test lint style types learning architectures benchmarks benchmark-trl lock clean

help: ## show this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1|/' | \
		awk -F'|' '{printf "  make %-14s %s\n", $$1, $$2}'

# install.py writes the stamp last, after `rlhf-algos doctor` has passed.
$(STAMP): setup.py requirements/install.py $(LOCKS)
	$(PYTHON) requirements/install.py --venv $(VENV) $(addprefix --lock ,$(LOCKS)) --editable .

$(TRL_STAMP): requirements/install.py benchmarks/requirements-trl.txt
	$(PYTHON) requirements/install.py --venv $(TRL_VENV) --lock benchmarks/requirements-trl.txt

setup: $(STAMP) ## make the virtual environment .venv, nothing else

doctor: $(STAMP) ## check the environment and say what is wrong with it
	$(BIN)/rlhf-algos doctor

demo: $(STAMP) ## set up and run the demo
	$(BIN)/python examples/demo.py

# In two processes, whose groups tests/conftest.py decides.
test: $(STAMP) ## set up and run the tests
	requirements/browser.sh
	$(BIN)/pytest --numprocesses 2 --dist loadgroup --no-loadscope-reorder --durations 10 $(PYTEST_ARGS)

lint: style types ## ruff and mypy

style: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# mypy doesn't follow an editable installation's mapping of folders, so it gets a folder with the package as
# a wheel would install it, made of links.
types: $(STAMP)
	rm -rf build/types
	mkdir -p build/types/rlhf_algos
	ln -s $(CURDIR)/rlhf_algos/* $(CURDIR)/algorithms $(CURDIR)/envs build/types/rlhf_algos/
	MYPYPATH=build/types $(BIN)/mypy -p rlhf_algos
	$(BIN)/mypy requirements/install.py requirements/lock.py

learning: $(STAMP) ## the slow tests: runs that must learn
	$(BIN)/pytest -m learning $(PYTEST_ARGS)

architectures: $(STAMP) ## every supported architecture, head and vocabulary, trained and saved
	$(BIN)/python benchmarks/architectures.py --json docs/data/architectures.json

benchmarks: $(STAMP) $(TRL_STAMP) ## speed, side by side with the alternative
	$(BIN)/python benchmarks/recording_cost.py --json docs/data/recording_cost.json
	$(BIN)/python benchmarks/chunked_logprobs.py --json docs/data/chunked_logprobs.json
	$(BIN)/python benchmarks/iteration_speed.py --compile --json docs/data/iteration_speed_compiled.json

benchmark-trl: $(STAMP) $(TRL_STAMP) ## TRL's speed on the bundled model, alone
	printf 'run 10\nquit\n' | $(TRL_VENV)/bin/python benchmarks/trl_grpo.py rlhf_algos/models/tiny_moe

lock: $(STAMP) ## write the locks again from what .venv holds now
	$(BIN)/python requirements/lock.py

clean: ## remove the environments and everything built
	rm -rf $(VENV) $(TRL_VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find rlhf_algos algorithms envs examples tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

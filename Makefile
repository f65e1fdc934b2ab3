# gateau-dagster: `make demo`, `make test`, `make dev`. Each sets up .venv when it is missing or out of date.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Test processes, each with one thread. More than two cores' worth: some tests wait for servers and daemons.
WORKERS ?= 3
# Where the benchmarks write what they measured.
BENCHMARKS ?= build/benchmarks
export HF_HUB_DISABLE_TELEMETRY := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help setup demo dev test test-long test-kills test-cuda test-pretrained test-mutations browser check lint format docs docs-serve example-real example-homologous example-pretrained example-synthesis clean \
	benchmark-selection benchmark-real benchmark-lengths benchmark-control benchmark-qmsum benchmark-base-rates benchmark-scoring benchmark-context-length benchmark-training benchmark-experiment benchmark-effect benchmark-daily benchmark-gpu figures architectures

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-26s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# Exact versions need no resolver, and two processes unpack them; torch comes early. What a platform needs further is
# seen and added afterwards.
INSTALL = grep -hv '^[-\#]' $(1) | sort -r | xargs -P 2 -n 20 $(BIN)/python -m pip install --quiet --no-compile --no-deps
ADD = $(BIN)/python -m pip check >/dev/null || $(BIN)/python -m pip install --quiet --no-compile --requirement $(1)
# Half of pip's time goes into compiling all modules one after another: here it is done on all cores, and without those
# that hardly anybody imports. Some packages hold templates that are no Python.
SELDOM = /tests?/|/transformers/models/|/(ray|pip|jieba|cfnlint)/
COMPILE = $(BIN)/python -m compileall -q -j 0 -x '$(SELDOM)' $(VENV)/lib gateau_dagster assets resources >/dev/null 2>&1 || true

$(VENV)/.run-installed: requirements.lock pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "No $(PYTHON): install Python 3.11 or newer, or make PYTHON=/path/to/python"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed: make PYTHON=/path/to/python3.11"; exit 1; }
	@echo "Setting up $(VENV): about 120 packages, torch among them; 2 to 3 minutes"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(call INSTALL,requirements.lock)
	@$(BIN)/python -m pip install --quiet --no-compile --no-deps --no-build-isolation --editable .
	@$(call ADD,requirements.lock)
	@$(COMPILE)
	@touch $@

$(VENV)/.dev-installed: requirements-dev.lock $(VENV)/.run-installed
	@echo "Setting up what the tests need"
	@$(call INSTALL,requirements-dev.lock)
	@$(call ADD,requirements-dev.lock)
	@$(COMPILE)
	@touch $@

setup: $(VENV)/.dev-installed  ## everything for development, into .venv

demo: $(VENV)/.run-installed  ## the whole pipeline on the embedded demo; with MODEL=hub name or folder that of example-pretrained; with SYNTHESIS=1 that of example-synthesis
	@$(if $(MODEL),$(MAKE) --no-print-directory example-pretrained,$(if $(SYNTHESIS),$(MAKE) --no-print-directory example-synthesis,$(BIN)/gateau demo))

dev: $(VENV)/.run-installed  ## the Dagster UI on the embedded demo, or on CONFIG=file
	@$(BIN)/gateau dev --config $(or $(CONFIG),demo)

browser:
	@test -n "$$CHROMIUM$$GATEAU_WITHOUT_BROWSER" && exit 0; \
	for name in chromium chromium-browser google-chrome; do command -v $$name >/dev/null && exit 0; done; \
	echo "Installing Debian's chromium for the browser tests"; \
	{ apt-get update -qq && apt-get install -y -qq chromium; } >/dev/null 2>&1 || { \
	  echo "The browser tests need chromium. Install it (apt-get install chromium), or set CHROMIUM=/path/to/it,"; \
	  echo "or GATEAU_WITHOUT_BROWSER=1 to leave these tests out."; exit 1; }

# Dagster flushes its records to the disk event by event: the tests' folders are in memory where 4 GB of it are free.
FOLDERS := $(shell test -w /dev/shm && test "$$(df -k /dev/shm | awk 'END {print $$4}')" -gt 4000000 && echo /dev/shm)
# A hundred processes of the tests load the project's modules: compiled once, whatever the environment says.
PYTEST := PYTEST_DEBUG_TEMPROOT=$(FOLDERS) PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadscope --no-loadscope-reorder

test: $(VENV)/.dev-installed browser  ## all tests but the long ones
	@echo "Running the tests in $(WORKERS) processes; the slowest build a model pair and drive a browser"
	@$(PYTEST) -m "not long and not kills" --durations 10

test-long: $(VENV)/.dev-installed browser  ## the tests that `make test` leaves out: whole runs of demo and example, more kills
	@$(PYTEST) -m long --durations 10

test-kills: $(VENV)/.dev-installed  ## a hundred kills and forty take-overs at random moments; each ends as an undisturbed run; KILLS_OF=demo: of the demo, 90 minutes
	@PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 KILLS_OF=$(KILLS_OF) PYTEST_DEBUG_TEMPROOT=$(FOLDERS) $(BIN)/python -m pytest -m kills -v -rP --numprocesses 2 --dist load

test-cuda: $(VENV)/.dev-installed  ## the tests that need a CUDA GPU, and torch's CUDA build
	@$(BIN)/python -m pytest -m cuda -rs

test-pretrained: $(VENV)/.dev-installed  ## every figure of real models against the slow reference: MODELS="folder folder"; 5 minutes each
	@GATEAU_TEST_MODELS="$(MODELS)" $(PYTEST) tests/scoring/test_pretrained.py -m long

test-mutations: $(VENV)/.dev-installed  ## 69 faults in the source, one at a time: the tests must notice each; 7 minutes
	@$(BIN)/python scripts/mutations.py

check: lint  ## lint, types and tests
	@$(MAKE) test

lint: $(VENV)/.dev-installed  ## ruff and pyright
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/pyright

format: $(VENV)/.dev-installed  ## format and mend what ruff can
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

docs: $(VENV)/.dev-installed  ## the documentation as a site, in build/site; a broken link is an error
	@$(BIN)/python scripts/reference.py --check
	@$(BIN)/python -m zensical build --strict

docs-serve: $(VENV)/.dev-installed  ## the documentation at http://localhost:8000, rebuilt on every change
	@$(BIN)/python -m zensical serve

example-real: $(VENV)/.run-installed  ## the pipeline on real text: LONG=file [SHORT=file] [OUT=folder]
	@test -n "$(LONG)" || { echo "Say where the long samples are: make example-real LONG=data/long.jsonl.gz [SHORT=data/sharegpt.json] [OUT=folder]"; exit 2; }
	@$(BIN)/python examples/real/run.py --long "$(LONG)" $(if $(SHORT),--short-chat "$(SHORT)") $(if $(OUT),--out "$(OUT)")

example-homologous: $(VENV)/.run-installed  ## theta_B made from theta_A, and how far both look back: 2 CPU minutes, [OUT=folder]
	@$(BIN)/python examples/homologous/run.py $(if $(OUT),--out "$(OUT)")

example-synthesis: $(VENV)/.run-installed  ## synthetic samples of a scripted generator, checked, trained on and compared: a few CPU minutes, [OUT=folder]
	@$(BIN)/python examples/synthesis/run.py $(if $(OUT),--out "$(OUT)")

example-pretrained: $(VENV)/.run-installed  ## real text and a pretrained model: [MODEL=hub name or folder] [NQ=questions] [OUT=folder]
	@$(BIN)/python examples/pretrained/run.py $(if $(MODEL),--model "$(MODEL)") $(if $(NQ),--questions "$(NQ)") $(if $(OUT),--out "$(OUT)")

benchmark-selection: $(VENV)/.run-installed  ## how well every method finds known dependencies: three seeds, 12 minutes
	@$(BIN)/python benchmarks/selection.py --out $(BENCHMARKS)/selection.json

# Nothing may be chosen on the half `report` of the questions; FOLD=choose is the other half.
FOLD ?= report
SIZES ?= 1024/256
SIZE ?= cpu
benchmark-real: $(VENV)/.run-installed  ## every method on real text: MODELS="folder folder" NQ=questions [SIZES="1024/256 1024/512"] [SEEDS="0 1 2 3"] [FOLD=choose] [TEMPLATES="gateau chat"]; resumable
	@$(BIN)/python benchmarks/real_selection.py --nq "$(NQ)" --models $(MODELS) --fold $(FOLD) --sizes $(SIZES) $(if $(SEEDS),--seeds $(SEEDS)) $(if $(TEMPLATES),--template $(TEMPLATES)) --out $(BENCHMARKS)/real_$(if $(TEMPLATES),templates_)$(FOLD).json

benchmark-lengths: $(VENV)/.run-installed  ## scores against the response's length: MODEL=folder NQ=questions [FOLD=choose]; resumable
	@$(BIN)/python benchmarks/response_length.py --nq "$(NQ)" --model "$(MODEL)" --fold $(FOLD) --out $(BENCHMARKS)/response_length_$(FOLD).json

benchmark-control: $(VENV)/.run-installed  ## the control of a ranking beside the AUROC by labels: PAIR=folder of the demo's pair
	@$(BIN)/python benchmarks/control.py --pair "$(PAIR)" --noise 0 0.3 0.6 1.0 --out $(BENCHMARKS)/control.json

benchmark-qmsum: $(VENV)/.run-installed  ## scores and evidence on meetings whose relevant turns people marked: MODELS="folder folder" QMSUM=meetings [NQ=questions] [PARTS=84] [MINUTES=60] [FOLD=choose] [QMSUM_NAME=qmsum_gemma3]; resumable
	@$(BIN)/python benchmarks/qmsum_selection.py --qmsum "$(QMSUM)" --models $(MODELS) --fold $(FOLD) $(if $(NQ),--nq "$(NQ)") $(if $(PARTS),--parts $(PARTS)) $(if $(MINUTES),--minutes $(MINUTES)) --out $(BENCHMARKS)/$(or $(QMSUM_NAME),qmsum_$(FOLD)).json

benchmark-base-rates: $(VENV)/.run-installed  ## which share of data sets depends on far text: MODEL=folder SETS="name=file name=file" [RATE_SIZES="4096/1024 8192/2048"] [SAMPLES=40] [RATES=base_rates_long]; resumable
	@$(BIN)/python benchmarks/base_rates.py --sets $(SETS) --model "$(MODEL)" $(if $(RATE_SIZES),--sizes $(RATE_SIZES)) $(if $(SAMPLES),--samples $(SAMPLES)) --out $(BENCHMARKS)/$(or $(RATES),base_rates).json

benchmark-scoring: $(VENV)/.run-installed  ## speed of scoring against a straightforward implementation
	@$(BIN)/python benchmarks/scoring.py --out $(BENCHMARKS)/scoring.json

benchmark-context-length: $(VENV)/.run-installed  ## time and peak memory against the context's length
	@$(BIN)/python benchmarks/context_length.py --out $(BENCHMARKS)/context_length.json

benchmark-training: $(VENV)/.run-installed  ## training in packed rows against padded ones; memory of the loss; what the memory levers save, cost and change
	@$(BIN)/python benchmarks/training.py --out $(BENCHMARKS)/training.json

benchmark-experiment: $(VENV)/.run-installed  ## does a selection train a better model than random data? MODEL=folder NQ=questions SIZE=cpu, cpu_auto or gpu; 2 to 3.4 hours of one core, or 1.8 hours on an H100, resumable
	@$(BIN)/python benchmarks/experiment.py --nq "$(NQ)" --model "$(MODEL)" --size $(SIZE) --out $(BENCHMARKS)/experiment_$(SIZE).json

benchmark-effect: $(VENV)/.run-installed  ## when does a selection pay? gain over random against the pool's far share: an hour on half a core, resumable
	@OMP_NUM_THREADS=1 $(BIN)/python benchmarks/effect.py --out $(BENCHMARKS)/effect.json
	@for base in 10000 50000 1000000; do OMP_NUM_THREADS=1 $(BIN)/python benchmarks/effect.py --theta $$base --shares 0.05 0.1 --arms untrained random mix --out $(BENCHMARKS)/effect_$$base.json || exit 1; done

benchmark-daily: $(VENV)/.run-installed  ## the commands of a working day on a store of 10,000 samples: [AGAINST=Python of another version], 5 minutes
	@$(BIN)/python benchmarks/daily.py $(if $(AGAINST),--against "$(AGAINST)") --out $(BENCHMARKS)/daily.json

figures: $(VENV)/.run-installed  ## put the newest results of the benchmarks into README and docs
	@$(BIN)/python benchmarks/figures.py --measured $(BENCHMARKS)

architectures: $(VENV)/.run-installed  ## which architectures of transformers work: docs/architectures.md, two minutes, resumable
	@OMP_NUM_THREADS=1 $(BIN)/python scripts/architectures.py --out $(BENCHMARKS)/architectures.json --page docs/architectures.md

benchmark-gpu: $(VENV)/.run-installed  ## scoring and training on a CUDA GPU, 9 minutes (needs torch's CUDA build)
	@$(BIN)/python benchmarks/gpu.py --out $(BENCHMARKS)/gpu.json

clean:  ## remove .venv, the demo's store and all scratch files
	rm -rf $(VENV) .gateau gateau_store gateau_demo build *.egg-info

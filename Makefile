# `make demo` and `make test` do everything on a fresh machine: a virtual environment in .venv, then their job.
PYTHON ?= python3
BIN := .venv/bin
PIP := pip install --quiet --disable-pip-version-check
WORKERS ?= 2

TORCH := 2.13.0
OLDEST_TORCH := 2.11.0
OLDEST_TRANSFORMERS := 5.10.1
# A plain torch from PyPI brings gigabytes of CUDA. Where there is no NVIDIA GPU, the CPU build is asked for, which comes
# from PyTorch's own index or from a local wheel. If neither has it (on macOS there is one build only), the plain pin.
CPU := $(if $(shell nvidia-smi -L 2>/dev/null | grep GPU),,+cpu)
CPU_INDEX := --timeout 15 --retries 1 --extra-index-url https://download.pytorch.org/whl/cpu
install_torch = $(if $(CPU),$(1) $(CPU_INDEX) "torch==$(2)$(CPU)" || )$(1) "torch==$(2)"

.PHONY: demo test test-oldest site lint browser gpu gpu-check sanitize scout reader results-check results-mark clean

demo: .venv/ready
	$(BIN)/texturevlm ask examples/invoice.png "What is the total?" --out demo.png

test: .venv/ready lint browser
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

# The page of `texturevlm serve` is tested in chromium. Where it is missing and cannot be installed, those tests are skipped.
browser:
	@command -v chromium > /dev/null || { test "$$(id -u)" = 0 && command -v apt-get > /dev/null && apt-get update -qq && \
		apt-get install -qq -y --no-install-recommends chromium > /dev/null; } || echo "no chromium: the page is not tested"

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The documents as a site in site/; look at it with `python -m http.server -d site`.
site: .venv/ready
	$(BIN)/python docs/build_site.py --out site

# Look for wrong accesses, races and wrong barriers in every kernel, on a machine with a GPU and compute-sanitizer (part of
# the CUDA toolkit): `make sanitize`, or with another interpreter `make sanitize SANITIZE_PYTHON=python3`.
# PyTorch's caching allocator would hide accesses beyond the end of a tensor, so it is switched off.
SANITIZE_PYTHON ?= $(BIN)/python
sanitize:
	@command -v compute-sanitizer > /dev/null || \
		{ echo "make sanitize: compute-sanitizer is not installed; it is part of the CUDA toolkit" >&2; exit 2; }
	for tool in memcheck racecheck synccheck; do \
		PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool $$tool --error-exitcode 1 --report-api-errors no \
			$(SANITIZE_PYTHON) -m pytest -m "gpu and sanitize" tests/cuda || exit 1; \
	done

# On a machine with a GPU: its tests in six processes, then `bench vlm`, `engine` and `corpus` beside the committed tables.
# Nothing is installed: `make gpu GPU_PYTHON=python3 PARTS="suite vlm" OUT=runs/gpu`; PARTS may name sanitize, too.
GPU_PYTHON ?= $(BIN)/python
PARTS ?= suite vlm engine corpus
OUT ?= runs/gpu
gpu-check: gpu

gpu:
	$(GPU_PYTHON) tests/gpu_check.py --out $(OUT) $(PARTS)

.venv/ready: pyproject.toml lab/pyproject.toml constraints.txt Makefile
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(call install_torch,$(BIN)/$(PIP) -c constraints.txt,$(TORCH))
	$(BIN)/$(PIP) -c constraints.txt -e ".[corpus,cuda,dev,docs,finetune,hf,large,maps,ocr,pdf,serve,slides,video]" -e ./lab
	touch .venv/ready

# The tests against the oldest supported torch and transformers, in .venv-oldest. A machine that cannot reach PyTorch's
# index gets the CUDA build of the old torch, several gigabytes; one without any index cannot run this.
test-oldest: .venv-oldest/ready
	.venv-oldest/bin/python -m pytest -n $(WORKERS) --dist worksteal

.venv-oldest/ready: pyproject.toml lab/pyproject.toml Makefile
	test -x .venv-oldest/bin/python || $(PYTHON) -m venv .venv-oldest
	$(call install_torch,.venv-oldest/bin/$(PIP),$(OLDEST_TORCH))
	.venv-oldest/bin/$(PIP) "torch==$(OLDEST_TORCH)" "transformers==$(OLDEST_TRANSFORMERS)" -e ".[corpus,cuda,dev,docs,finetune,hf,large,maps,ocr,pdf,serve,slides,video]" -e ./lab
	touch .venv-oldest/ready

# List the tables of results/ that today's code and weights did not make; `make results-mark` writes that into them.
results-check: .venv/ready
	$(BIN)/python -m texturevlm_lab.studies.results_check

results-mark: .venv/ready
	$(BIN)/python -m texturevlm_lab.studies.results_check --mark

# Train the scout and put it into the package: `make scout DATA=../shared/data`, on a machine with a GPU, OCR and fonts.
scout: .venv/ready
	$(BIN)/texturevlm pack-pages $(DATA) --words runs/words --out runs/pages
	$(BIN)/texturevlm train examples/train/spotter.toml --out runs/spotter --resume
	$(BIN)/texturevlm train examples/train/ranker.toml --out runs/ranker --resume
	$(BIN)/texturevlm ship-scout --spotter runs/spotter/step-00007000/weights.safetensors \
		--ranker runs/ranker/step-00000900/weights.safetensors --out texturevlm/scout/scout.npz

# Train the reader on from the weights that ship, and put the mean of both into the package: `make reader
# DATA=../shared/data`, on a machine with a GPU, OCR and fonts. After a cut the same command goes on. Another stage: remove
# runs/reader and runs/reader-before first; other data: runs/reader-pages too.
reader: .venv/ready runs/reader-pages/pages.json runs/reader-before/model.safetensors
	$(BIN)/texturevlm train examples/train/reader.toml --out runs/reader --resume
	$(BIN)/texturevlm ship-reader runs/reader --mean runs/reader-before --budget 512

runs/reader-pages/pages.json: | .venv/ready
	$(BIN)/texturevlm pack-reader $(DATA) --words runs/words --out $(@D)

runs/reader-before/model.safetensors:
	mkdir -p $(@D)
	cp texturevlm/reader/* $(@D)

clean:
	rm -rf .venv .venv-oldest demo.png site

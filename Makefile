# `make demo` and `make test` do everything on a fresh machine: a virtual environment in .venv, then their job.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test lint sanitize scout clean

demo: .venv/ready
	$(BIN)/texturevlm look examples/invoice.png --fixation 1056,1227 --e0 0.1 --budget 273 --out demo.png

test: .venv/ready lint
	$(BIN)/python -m pytest

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Looks for wrong accesses, races and wrong barriers in every kernel, on a machine with a GPU and compute-sanitizer (part of
# the CUDA toolkit): `make sanitize`, or with another interpreter `make sanitize SANITIZE_PYTHON=python3`.
# PyTorch's caching allocator would hide accesses beyond the end of a tensor, so it is switched off.
SANITIZE_PYTHON ?= $(BIN)/python
sanitize:
	@command -v compute-sanitizer > /dev/null || \
		{ echo "make sanitize: compute-sanitizer is not installed; it is part of the CUDA toolkit" >&2; exit 2; }
	for tool in memcheck racecheck synccheck; do \
		PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool $$tool --error-exitcode 1 \
			$(SANITIZE_PYTHON) -m pytest -m "gpu and sanitize" tests/cuda || exit 1; \
	done

# Pinned, because a plain `torch` would bring gigabytes of CUDA to a machine without a GPU.
.venv/ready: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt "torch==2.13.0"
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[cuda,dev,eval,hf,ocr,train,video]"
	touch .venv/ready

# Train the scout and put it into the package: `make scout DATA=../shared/data`, on a machine with a GPU, OCR and fonts.
scout: .venv/ready
	$(BIN)/texturevlm pack-pages $(DATA) --words runs/words --out runs/pages
	$(BIN)/texturevlm train examples/train/spotter.toml --out runs/spotter --resume
	$(BIN)/texturevlm train examples/train/ranker.toml --out runs/ranker --resume
	$(BIN)/texturevlm ship-scout --spotter runs/spotter/step-00010000/weights.safetensors \
		--ranker runs/ranker/step-00000900/weights.safetensors --out texturevlm/scout/scout.npz

clean:
	rm -rf .venv demo.png

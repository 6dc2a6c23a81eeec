"""Fine-tune a vision-language model with LoRA on a corpus: tokens were chosen once, by `texturevlm corpus`.

Usage: texturevlm corpus pages --out pages.corpus --questions samples.jsonl --patch 32 --relevance scout
       python examples/finetune_corpus.py pages.corpus --model Qwen/Qwen3-VL-2B-Instruct --out runs/adapter

A line of samples.jsonl: {"key": "page.png", "question": "What is the total?", "answer": "12,304.50"}. The options are
those of examples/finetune.py; budget and relevance are the corpus's.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch.utils.data import Dataset

import texturevlm as tv

sys.path.insert(0, str(Path(__file__).parent))
import finetune  # the example beside this one


class Samples(Dataset[dict[str, Any]]):
    """The rows of a corpus as finetune.Collator takes them: chosen patches stand where an image would."""

    def __init__(self, folder: Path) -> None:
        self.corpus = tv.corpus.open(folder)
        if self.corpus.recipe.write != "patches":
            raise ValueError(f"finetune: {folder} must hold patches, got {self.corpus.recipe.write}")

    def __len__(self) -> int:
        return len(self.corpus)

    def __getitem__(self, number: int) -> dict[str, Any]:
        row = self.corpus[number]
        if not row["question"] or "answer" not in row:
            raise ValueError(
                f"finetune: row {row['key']} must have a question and an answer; give --questions with both"
            )
        return {"image": row["patches"], "question": row["question"], "answer": str(row["answer"])}


def main(arguments: Sequence[str] | None = None) -> None:
    options = finetune.parse(arguments)
    samples = Samples(options.samples)
    budget = samples.corpus.recipe.budget
    options.budget = (budget, budget)
    losses = finetune.train(samples, options)
    if losses:
        print(f"loss {losses[0]:.3f} → {losses[-1]:.3f} in {options.steps} steps; adapter and processor: {options.out}")


if __name__ == "__main__":
    main()

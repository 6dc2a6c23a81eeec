"""Fine-tune a vision-language model with LoRA on chosen tokens, at random budgets, so that it is good at any budget.

Usage: python examples/finetune.py samples.jsonl --model Qwen/Qwen3-VL-2B-Instruct --out runs/adapter

A line of samples.jsonl: {"image": "page.png", "question": "What is the total?", "answer": "12,304.50"}. The paths of
images count from the folder of that file. docs/finetuning.md says more.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor
from transformers import Trainer, TrainingArguments, set_seed
from transformers.trainer_utils import get_last_checkpoint

import texturevlm as tv
from texturevlm.ask.processor import TextureProcessor

Sample = dict[str, str]
IGNORED = -100  # a label that the loss leaves out
LANGUAGE = r"(?!.*(visual|vision)).*\.(q|k|v|o|gate|up|down)_proj"  # layers that LoRA changes: the vision tower stays


@dataclass(frozen=True)
class Collator:
    """Samples → inputs of the model with labels. It runs in the workers, so tokens are chosen there, on the CPU."""

    processor: Any

    def __call__(self, samples: Sequence[Sample]) -> dict[str, Tensor]:
        prompts, endings = zip(*(self.rendered(sample) for sample in samples))
        batch = self.processor(
            images=[[sample["image"]] for sample in samples],
            text=[prompt + ending for prompt, ending in zip(prompts, endings)],
            question=[sample["question"] for sample in samples],
            padding=True,
            padding_side="right",
            return_tensors="pt",
        )
        # Only the answer counts: the prompt, its visual tokens and the padding have no label.
        batch["labels"] = torch.full_like(batch["input_ids"], IGNORED)
        answers = self.processor.tokenizer(list(endings), add_special_tokens=False)["input_ids"]
        for labels, ids, mask, answer in zip(batch["labels"], batch["input_ids"], batch["attention_mask"], answers):
            end = int(mask.sum())
            labels[end - len(answer) : end] = ids[end - len(answer) : end]
        return dict(batch)

    def rendered(self, sample: Sample) -> tuple[str, str]:
        """The prompt as the model will see it when it is asked, and the answer with what ends it."""
        question = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": sample["question"]}]}
        answer = {"role": "assistant", "content": [{"type": "text", "text": sample["answer"]}]}
        prompt = self.processor.apply_chat_template([question], add_generation_prompt=True)
        whole = self.processor.apply_chat_template([question, answer])
        if not whole.startswith(prompt):
            raise ValueError(f"finetune: chat template must put the answer behind the prompt {prompt!r}, got {whole!r}")
        ending, end = whole[len(prompt) :], self.processor.tokenizer.eos_token
        return prompt, ending if end in ending else ending + end


def read_samples(path: Path) -> list[Sample]:
    """The lines of a JSONL file, with full paths."""
    samples = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not line.strip():
            continue
        try:
            sample = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"finetune: {path}:{number} must be JSON, got {line!r:.60} ({error})") from None
        if missing := {"image", "question", "answer"} - set(sample):
            raise ValueError(f"finetune: {path}:{number} must have image, question and answer, lacks {sorted(missing)}")
        image = path.parent / sample["image"]
        if not image.is_file():
            raise FileNotFoundError(f"finetune: {path}:{number} names an image that is not there: {image}")
        samples.append({**sample, "image": str(image)})
    if not samples:
        raise ValueError(f"finetune: {path} must have at least one sample, got none")
    return samples


def train(samples: list[Sample], options: argparse.Namespace) -> list[float]:
    """Train an adapter and save it with the processor; returns the losses that were logged, in the first process."""
    set_seed(options.seed)  # of the adapter's weights; the trainer seeds the order of samples and the budgets
    arguments = TrainingArguments(
        output_dir=options.out,
        max_steps=options.steps,
        per_device_train_batch_size=options.batch,
        gradient_accumulation_steps=options.accumulate,
        learning_rate=options.learning_rate,
        lr_scheduler_type="cosine",
        warmup_steps=options.steps // 20,
        gradient_checkpointing=True,
        gradient_checkpointing_kwargs={"use_reentrant": False},  # the inputs of a frozen model have no gradients
        bf16=torch.cuda.is_available(),
        use_cpu=not torch.accelerator.is_available(),
        dataloader_num_workers=options.workers,
        dataloader_persistent_workers=options.workers > 0,
        dataloader_pin_memory=torch.cuda.is_available(),
        ddp_find_unused_parameters=False,  # with several processes: the adapter is used in every step
        remove_unused_columns=False,  # the collator needs images, questions and answers, which no model takes
        logging_steps=options.log_every,
        save_steps=options.save_every,
        save_total_limit=2,
        report_to="none",
        seed=options.seed,
    )
    vlm = tv.load_vlm(options.model, device=arguments.device)
    model = get_peft_model(
        vlm.model, LoraConfig(r=options.rank, lora_alpha=2 * options.rank, target_modules=options.layers)
    )
    processor = tv.attach(model, vlm.processor, budget=tuple(options.budget), relevance=options.relevance)
    model.print_trainable_parameters()
    trainer = Trainer(
        model, arguments, data_collator=Collator(processor), train_dataset=samples, processing_class=processor
    )
    trainer.train(resume_from_checkpoint=options.resume and get_last_checkpoint(options.out))
    trainer.save_model()  # the adapter and, because it is the processing class, the processor
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry] if arguments.should_save else []


def load_tuned(model: str, adapter: Path, *, budget: int, relevance: str) -> tv.VLM:
    """The model with its adapter, at one budget."""
    processor = TextureProcessor.from_pretrained(adapter, budget=budget, relevance=relevance)
    tuned = PeftModel.from_pretrained(tv.load_vlm(model).model, adapter)
    return tv.VLM(tuned, processor)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    samples = read_samples(options.samples)
    losses = train(samples, options)
    if not losses:
        return
    print(f"loss {losses[0]:.3f} → {losses[-1]:.3f} in {options.steps} steps; adapter and processor: {options.out}")
    for budget in options.budget:
        tuned = load_tuned(options.model, options.out, budget=budget, relevance=options.relevance[0])
        for sample in samples[: options.check]:
            answer = tuned.ask(sample["image"], sample["question"], max_new_tokens=64)
            print(f"budget {budget}: {sample['question']} → {answer} (wanted: {sample['answer']})")


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("samples", type=Path, help="JSONL file of image, question and answer")
    add("--model", required=True, help="a hub id or a folder")
    add("--out", type=Path, required=True, help="folder for the adapter, the processor and checkpoints")
    add("--steps", type=int, default=500)
    add("--batch", type=int, default=4, help="samples per step and device")
    add("--accumulate", type=int, default=1, help="batches per step")
    add("--learning-rate", type=float, default=1e-4)
    add("--rank", type=int, default=16, help="of LoRA")
    add("--layers", default=LANGUAGE, help="regular expression for the layers that LoRA changes")
    add("--budget", type=int, nargs=2, default=(32, 512), metavar=("LOW", "HIGH"), help="one is drawn per sample")
    add("--relevance", nargs="+", default=["scout", "none"], help="one is drawn per sample; the first is used to check")
    add("--workers", type=int, default=2, help="processes that choose tokens")
    add("--seed", type=int, default=0)
    add("--log-every", type=int, default=10, help="steps")
    add("--save-every", type=int, default=100, help="steps")
    add("--resume", action="store_true", help="go on from the last checkpoint in --out")
    add("--check", type=int, default=3, help="samples to ask after training, at both budgets")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()

"""The training loop: a task provides batches and losses; `fit` does the steps, checkpoints, logs and resuming.

Exact resume rests on three things: batches and schedules depend on the step number alone, the checkpoint holds the
optimiser's moments and torch's random state, and evaluation uses random numbers of its own. With `seconds` the rate
also follows the clock, so that a resumed run has another curve.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from texturevlm.channels.pretrained import torch_device
from texturevlm.progress import Progress
from texturevlm_lab.train.averaged import AveragedWeights
from texturevlm_lab.train.captured_step import CapturedSteps, Run
from texturevlm_lab.train.config import MAY_CHANGE, FitConfig, to_json
from texturevlm_lab.train.muon import Muon
from texturevlm_lab.train.run_files import Log, check_out, checkpoints, load_checkpoint, save_checkpoint


def rate_at(
    step: int, *, steps: int, rate: float, warmup: int = 0, schedule: str = "cosine", spent: float = 0.0
) -> float:
    """The learning rate of a step, counted from 0: it grows to its peak, then falls by the schedule.

    spent: the share of the run's time that is over, if that is limited; it counts if it is more than that of the steps
    """
    if step < warmup:
        return rate * (step + 1) / warmup
    done, total = float(step - warmup), float(max(1, steps - warmup))
    if spent * total > done:
        done, total = min(spent, 1.0), 1.0
    if schedule == "linear":
        return rate * (1 - done / total)
    return rate * (1 + math.cos(math.pi * done / total)) / 2


def generator_at(seed: int, step: int, purpose: str = "") -> torch.Generator:
    """A generator for one step: the same whenever that step is repeated, and different for every other step."""
    named = hashlib.blake2b(f"{seed}/{step}/{purpose}".encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(named, "little") >> 1)


def draw_examples(count: int, batch: int, *, seed: int, step: int) -> list[int]:
    """`batch` indices below `count`, drawn with replacement: the examples of a step."""
    return draw_questions([count], batch, seed=seed, step=step)


def draw_questions(sizes: Sequence[int], count: int, *, seed: int, step: int, steps: int = 0) -> list[int]:
    """`count` questions, numbered through all data sets of these sizes; the same whenever the step is repeated.

    steps: so many steps long the chance of the first data set falls from all to an even share
    """
    generator = generator_at(seed, step, "curriculum")
    share = 1.0 if steps == 0 else min(1.0, step / steps)
    chances = [share / len(sizes) + (1 - share) * (number == 0) for number in range(len(sizes))]
    wanted = torch.tensor(chances, dtype=torch.float64)
    chosen = torch.multinomial(wanted, count, replacement=True, generator=generator).tolist()
    within = torch.rand(count, generator=generator, dtype=torch.float64).tolist()
    return [sum(sizes[:number]) + int(place * sizes[number]) for number, place in zip(chosen, within)]


class Task(Protocol):
    """What `fit` needs of a task."""

    @property
    def module(self) -> nn.Module:
        """Its parameters are trained; its state goes into checkpoints."""

    def batch(self, step: int) -> Any:
        """The batch of step number `step` (from 0): the same whenever it is asked for, in any thread."""

    def losses(self, batch: Any, step: int) -> Mapping[str, Tensor]:
        """Losses by name; the config weights them. The names are the same at every step."""

    def evaluate(self) -> Mapping[str, float]:
        """Scores of the module; called without gradients."""


def fit(
    task: Task, config: FitConfig, out: Path | str, *, resume: bool = False, settings: Mapping[str, Any] | None = None
) -> dict[str, float]:
    """Train a task's module in place.

    out:      folder for checkpoints, log.csv (the loss curve), evaluations.jsonl and TensorBoard's event file
    resume:   continue exactly from the last checkpoint in `out`; from the start if there is none. Of `config.seconds`
              what is left is spent
    settings: the task's settings, kept in checkpoints; a resumed run must have the same
    returns   the last evaluation
    """
    out, device = Path(out), torch_device("fit", config.device)
    task.module.to(device)
    torch.manual_seed(config.seed)
    optimiser = _optimiser(task.module, config)
    kept = {"fit": to_json(config), "task": dict(settings or {})}
    averaged = AveragedWeights(task.module, config.average) if config.average else None
    first, before = _begin(out, task.module, optimiser, averaged, kept, resume)
    run: Run = partial(_trained, task, config, optimiser, device)
    if config.captured:
        run = CapturedSteps(run, optimiser, device)
    log, progress = Log(out, step=first), Progress(config.steps, "steps", done=first)
    found: dict[str, float] = {}
    begun, last = 0.0, False

    def spent() -> float:
        """Seconds from the first batch on, which may take long."""
        return before + time.monotonic() - begun

    over = bool(config.seconds) and before >= config.seconds
    for step, batch in _batches(task, range(first, first if over else config.steps), config.ahead):
        begun = begun or time.monotonic()
        share = spent() / config.seconds if config.seconds else 0.0
        falls: Any = {"steps": config.steps, "warmup": config.warmup, "schedule": config.schedule, "spent": share}
        rate = rate_at(step, rate=config.rate, **falls)
        _set_rate(optimiser, rate)
        numbers = dict(run((batch, None if config.captured else step)))
        length = numbers.pop("gradient")
        if averaged is not None:
            averaged.update(step + 1)
        numbers |= {"rate": torch.tensor(rate, dtype=torch.float64), "gradient": length}
        done, last = step + 1, step + 1 == config.steps or share >= 1
        progress.step()
        saves, evaluates, logs = (
            last or bool(every and done % every == 0)
            for every in (config.save_every, config.evaluate_every, config.log_every)
        )
        if logs or saves:  # only then wait for the GPU
            read = _read(numbers, step)
            progress.note = f", loss {read['loss']:.4f}"
            if logs:
                log.losses(done, read)
        if saves:  # first: an evaluation may take long, and a run may be killed meanwhile
            so_far = {"seconds": spent(), **kept}
            save_checkpoint(out, done, task.module, optimiser, so_far, keep=config.keep, averaged=averaged)
        if evaluates:
            found = evaluated(task, averaged)
            log.evaluation(done, found)
        if last:
            break
    log.close()
    return found or evaluated(task, averaged)


def evaluated(task: Task, averaged: AveragedWeights | None = None) -> dict[str, float]:
    """The task's evaluation; leaves the module's mode and the random state of training as they were.

    averaged: what is evaluated, if it is not the weights themselves
    """
    training = task.module.training
    task.module.eval()
    try:
        with torch.random.fork_rng(), torch.no_grad(), averaged.in_place() if averaged else nullcontext():
            return {name: float(value) for name, value in task.evaluate().items()}
    finally:
        task.module.train(training)


def _batches(task: Task, steps: range, ahead: int) -> Iterator[tuple[int, Any]]:
    """Each step with its batch; `ahead` batches are prepared in threads."""
    if not ahead:
        yield from ((step, task.batch(step)) for step in steps)
        return
    with ThreadPoolExecutor(ahead) as makers:
        waiting = deque(makers.submit(task.batch, step) for step in steps[:ahead])
        try:
            for step in steps:
                made = waiting.popleft()
                if step + ahead < steps.stop:
                    waiting.append(makers.submit(task.batch, step + ahead))
                yield step, made.result()
        finally:
            for made in waiting:
                made.cancel()


def _set_rate(optimiser: torch.optim.Optimizer, rate: float) -> None:
    for group in optimiser.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)  # graphs read it there
        else:
            group["lr"] = rate


def _trained(
    task: Task, config: FitConfig, optimiser: torch.optim.Optimizer, device: torch.device, given: tuple[Any, int | None]
) -> dict[str, Tensor]:
    """One optimiser step on a batch; returns the loss, its parts and the norm of the gradient.

    given: the batch and its step number, which a graph does not know
    """
    batch, step = given
    task.module.train()
    with torch.autocast(device.type, torch.bfloat16, enabled=config.precision == "bfloat16"):
        parts = task.losses(batch, step or 0)
    if unknown := [name for name in config.losses if name not in parts]:
        raise ValueError(f"fit: losses may have {', '.join(parts)}, got {unknown[0]!r}")
    loss = torch.stack([part.float() * config.losses.get(name, 1.0) for name, part in parts.items()]).sum()
    optimiser.zero_grad(set_to_none=True)
    torch.autograd.backward(loss)
    length = nn.utils.clip_grad_norm_(task.module.parameters(), config.clip or math.inf)
    optimiser.step()
    return {"loss": loss, **parts, "gradient": length}


def _read(numbers: Mapping[str, Tensor], step: int) -> dict[str, float]:
    """The numbers of a step, copied from the device in one transfer."""
    place = numbers["loss"].device
    together = torch.stack([one.detach().to(place, torch.float64) for one in numbers.values()])
    found = dict(zip(numbers, together.tolist()))
    if not math.isfinite(found["loss"]):
        raise ValueError(f"fit: the loss of step {step} must be finite, got {found}")
    return found


def _optimiser(module: nn.Module, config: FitConfig) -> torch.optim.Optimizer:
    if config.optimiser == "muon":
        return Muon(module, lr=config.rate, decay=config.decay, capturable=config.captured)
    return torch.optim.AdamW(_groups(module, config.decay), lr=config.rate, capturable=config.captured)


def _groups(module: nn.Module, decay: float) -> list[dict[str, Any]]:
    """Parameter groups: matrices have weight decay; vectors and numbers (biases, scales) have none."""
    parameters = [one for one in module.parameters() if one.requires_grad]
    if not parameters:
        raise ValueError(f"fit: module must have trainable parameters, got none in {type(module).__name__}")
    wide = {"params": [one for one in parameters if one.dim() > 1], "weight_decay": decay}
    narrow = {"params": [one for one in parameters if one.dim() <= 1], "weight_decay": 0.0}
    return [group for group in (wide, narrow) if group["params"]]


def _begin(
    out: Path,
    module: nn.Module,
    optimiser: torch.optim.Optimizer,
    averaged: AveragedWeights | None,
    kept: dict[str, Any],
    resume: bool,
) -> tuple[int, float]:
    """Restore the last checkpoint, if there is one; returns the step to continue from, and the seconds spent."""
    for unfinished in out.glob(".step-*"):  # what a kill while writing left behind
        shutil.rmtree(unfinished, ignore_errors=True)
    check_out(out, resume=resume)
    before = checkpoints(out)
    if not before:
        return 0, 0.0
    last = before[-1]
    config = json.loads((last / "config.json").read_text(encoding="utf-8"))
    for part, may_change in (("fit", MAY_CHANGE), ("task", ())):
        for name in sorted({*kept[part], *config[part]} - {*may_change}):
            old, new = config[part].get(name), kept[part].get(name)
            if old != new:
                raise ValueError(f"fit: {part}.{name} must be {old!r} as in {last}, got {new!r}")
    load_checkpoint(last, module, optimiser, averaged)
    return int(config["step"]), float(config.get("seconds", 0.0))

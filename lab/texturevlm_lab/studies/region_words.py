"""Train the image–text network for photographs on a GPU, and write where it sees each named object.

    python -m texturevlm_lab.studies.region_words DATA --out DIR [--seconds S] [--fold-seconds S] [--canvases N]
        [--device D]

DATA is the file of region_data.py. First captions alone teach the network; then, from there, one network per fold of
the COCO `train` photographs learns their boxes too, without its own fold, and one from all of them. photograph_words.py
judges what DIR gets: captions.npz, the maps of the first network, and boxes.npz, those of `train` photographs by the
network that has not seen them, of `eval` by the last; record.json; and weights.safetensors, the last network. Of a run
that is cut after the first network, captions.npz and record.json are left and can be judged. --limit is the number of
photographs of each kind.
"""

import argparse
import copy
import json
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from texturevlm_lab.evaluate.provenance import origin
from texturevlm_lab.studies.region_canvases import SIDE, Source, canvases, draw_windows, whole
from texturevlm_lab.studies.region_data import FOLDS, Boxed, Captioned, load_packed
from texturevlm_lab.studies.region_network import BoxDraw, RegionNetwork, box_losses, caption_losses, mean_exp
from texturevlm_lab.studies.study import DEVICE, device_of, option, study_main
from texturevlm_lab.train.averaged import AveragedWeights

RATE, FOLD_RATE, DECAY = 2e-3, 8e-4, 0.05
WARM = 0.05  # share of the time in which the rate rises
AVERAGED = 0.998
HARD = 0.5  # share of mosaics whose tiles have captions alike
SHARES = {1: 0.25, 2: 0.5, 4: 0.25}  # of the canvases, by tiles along a side
BOX_SHARES = {1: 0.25, 2: 0.125}  # canvases of photographs with boxes, over the canvases of captions
WEIGHTS = {"regions": 1.0, "words": 0.5, "mosaic": 1.0, "classify": 0.5, "locate": 1.0, "place": 1.0}
LEAST_IMAGES = 10  # that a word must be in to be judged
CHUNK = 32
CAPTIONS, BOXES, RECORD = "captions.npz", "boxes.npz", "record.json"


class Lessons:
    """Photographs on the device, and the losses of one step."""

    def __init__(self, captioned: Captioned, boxed: Boxed, names: Tensor, count: int, device: str) -> None:
        self.device, self.count, self.names = device, count, names.to(device)
        self.captions, self.objects = Source.of(captioned.pixels, device), Source.of(boxed.pixels, device)
        self.named, self.near = captioned.named.to(device), captioned.near.to(device)
        self.learned = (~captioned.held).nonzero()[:, 0].to(device)
        self.boxed = Boxed(boxed.pixels, boxed.boxes.to(device), boxed.label.to(device), boxed.fold, boxed.images)

    def losses(self, network: RegionNetwork, photographs: Tensor | None) -> dict[str, Tensor]:
        """photographs: those with boxes to learn from; None: captions alone."""
        planes, named, draws = [], [], []
        for tiles, share in SHARES.items():
            chosen = self._mosaics(max(1, round(share * self.count)), tiles * tiles)
            named.append(self.named[chosen])
            planes.append(canvases(self.captions, chosen, tiles, draw_windows(len(chosen), tiles, self.device)))
        if photographs is not None:
            for tiles, share in BOX_SHARES.items():
                wanted = max(1, round(share * self.count)) * tiles * tiles
                drawn = torch.randint(len(photographs), (wanted,), device=self.device)
                draws.append(BoxDraw(self.objects, self.boxed, photographs[drawn], tiles))
        every = [*planes, *(draw.planes for draw in draws)]
        cells = embedded(network, torch.cat(every), self.device).split([len(part) for part in every])
        found = caption_losses(network, cells[: len(planes)], named)
        for draw, part in zip(draws, cells[len(planes) :]):
            for name, loss in box_losses(network, draw, part, self.names).items():
                found[name] = found.get(name, 0.0) + loss / len(draws)
        return found

    def _mosaics(self, count: int, tiles: int) -> Tensor:
        """(count · tiles,): photographs of mosaics; in some, all tiles have captions like the first one's."""
        drawn = self.learned[torch.randint(len(self.learned), (count, tiles), device=self.device)]
        picked = torch.randint(self.near.shape[1], (count, tiles), device=self.device)
        alike = self.near[drawn[:, 0]].gather(1, picked)
        alike[:, 0] = drawn[:, 0]
        hard = torch.rand(count, 1, device=self.device) < HARD
        return torch.where(hard, alike, drawn).flatten()


def embedded(network: RegionNetwork, planes: Tensor, device: str) -> Tensor:
    torch.backends.cudnn.benchmark = network.training  # judging has many sizes of batches, each of them once
    precise: Any = torch.autocast("cuda", torch.bfloat16) if device.startswith("cuda") else nullcontext()
    with precise:
        cells: Tensor = network(planes)
    return cells


def taught(
    network: RegionNetwork, losses: Callable[[RegionNetwork], dict[str, Tensor]], seconds: float, rate: float, name: str
) -> tuple[RegionNetwork, int]:
    """The mean of the network's weights over the last steps, after so many seconds, and the number of steps."""
    network.train()
    slow = [one for one in network.parameters() if one.ndim < 2]
    fast = [one for one in network.parameters() if one.ndim >= 2]
    groups = [{"params": fast, "weight_decay": DECAY}, {"params": slow, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.98))
    averaged = AveragedWeights(network, AVERAGED)
    steps = 0
    for share in elapsed(seconds):
        for group in optimizer.param_groups:
            group["lr"] = rate * min(share / WARM, 1.0) * (0.02 + 0.98 * (1 + np.cos(np.pi * share)) / 2)
        found = losses(network)
        loss = torch.stack([WEIGHTS[key] * value for key, value in found.items()]).sum()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 2.0)
        optimizer.step()
        averaged.update(steps + 1)
        if steps % 200 == 0:
            shown = "  ".join(f"{key} {value.item():.3f}" for key, value in found.items())
            print(f"{name}: {share:4.0%}, step {steps}: {shown}", flush=True)
        steps += 1
    with averaged.in_place():
        return copy.deepcopy(network).eval(), steps


def elapsed(seconds: float) -> Iterator[float]:
    """The share of the time that has passed, before each step, of which there is at least one."""
    start, share = time.perf_counter(), 0.0
    while share < 1:
        yield share
        share = (time.perf_counter() - start) / seconds


@torch.no_grad()
def word_precision(network: RegionNetwork, lessons: Lessons, held: Tensor) -> dict[str, float]:
    """Mean average precision over words of ranking photographs that nothing was learned from, and by chance."""
    chosen = held.nonzero()[:, 0].to(lessons.device)
    fits = []
    for part in chosen.split(CHUNK):
        planes = canvases(lessons.captions, part, 1, whole(len(part), lessons.device), jitter=False)
        fits.append(mean_exp(network.fits(embedded(network, planes, lessons.device))))
    truth = lessons.named[chosen] > 0
    enough = truth.sum(0) >= min(LEAST_IMAGES, max(1, len(chosen) // 50))
    order = torch.cat(fits)[:, enough].argsort(0, descending=True)
    hits = truth[:, enough].gather(0, order).float()
    ranks = torch.arange(1, len(hits) + 1, device=hits.device)[:, None]
    precision = (hits.cumsum(0) / ranks * hits).sum(0) / hits.sum(0).clamp(min=1)
    found = {"precision": float(precision.mean()), "by_chance": float(truth[:, enough].float().mean())}
    return {**found, "words": int(enough.sum()), "photographs": len(chosen)}


@torch.no_grad()
def seen_names(network: RegionNetwork, lessons: Lessons, photographs: Tensor) -> Tensor:
    """(N, names, SIDE, SIDE): how well each name fits each cell of N photographs, the mean with the mirrored one."""
    found = [torch.zeros(0, len(lessons.names), SIDE, SIDE)]
    for first in range(0, len(photographs), CHUNK):
        part, maps = photographs[first : first + CHUNK].to(lessons.device), []
        for mirrored in (False, True):
            windows = whole(len(part), lessons.device)
            windows = windows._replace(mirrored=windows.mirrored | mirrored)
            planes = canvases(lessons.objects, part, 1, windows, jitter=False)
            fits = network.fits(embedded(network, planes, lessons.device), lessons.names)
            maps.append(fits.flip(3) if mirrored else fits)
        found.append(torch.stack(maps).mean(0).cpu())
    return torch.cat(found)


def train(options: argparse.Namespace) -> None:
    device = device_of(options)
    for name in ("seconds", "fold_seconds", "canvases"):
        if not getattr(options, name) > 0:
            raise ValueError(f"--{name.replace('_', '-')} must be positive, got {getattr(options, name)}")
    options.out.mkdir(parents=True, exist_ok=True)
    if device.startswith("cuda"):
        torch.set_float32_matmul_precision("high")
    torch.manual_seed(1)
    vocabulary, names, captioned, boxed = load_packed(options.data, options.limit)
    numbers = torch.tensor([vocabulary.index(name) for name in names])
    lessons = Lessons(captioned, boxed, numbers, options.canvases, device)
    network = RegionNetwork(captioned.named[~captioned.held].mean(0)).to(device)
    print(
        f"{len(vocabulary)} words, {sum(one.numel() for one in network.parameters())} weights on {device}", flush=True
    )
    network, steps = taught(network, lambda one: lessons.losses(one, None), options.seconds, RATE, "captions")
    record: dict[str, Any] = {"steps": {"captions": steps}, "words": word_precision(network, lessons, captioned.held)}
    record |= {"names": names, "images": boxed.images, "vocabulary": len(vocabulary), "device": described(device)}
    record |= {
        "command": options.command,
        "code": str(origin("texturevlm_lab.studies.region_words")),
        "torch": torch.__version__,
    }
    print(record["words"], flush=True)
    maps = seen_names(network, lessons, torch.arange(len(boxed.images)))
    write_maps(options.out / CAPTIONS, maps)
    write_record(options.out, record)
    for fold in (*range(FOLDS), -1):
        learned = ((boxed.fold >= 0) & (boxed.fold != fold)).nonzero()[:, 0].to(device)
        last, steps = taught(
            copy.deepcopy(network),
            lambda one, learned=learned: lessons.losses(one, learned),  # type: ignore[misc]
            options.fold_seconds,
            FOLD_RATE,
            f"boxes without fold {fold}" if fold >= 0 else "all boxes",
        )
        record["steps"][f"fold {fold}"] = steps
        own = (boxed.fold == fold).nonzero()[:, 0]
        maps[own] = seen_names(last, lessons, own)
    record["words_at_the_end"] = word_precision(last, lessons, captioned.held)
    write_maps(options.out / BOXES, maps)
    tensors = {name: one.cpu().half().contiguous() for name, one in last.state_dict().items()}
    save_file(tensors, options.out / "weights.safetensors")
    write_record(options.out, record)
    print({key: record[key] for key in ("steps", "words_at_the_end", "device")}, flush=True)


def write_record(out: Path, record: dict[str, Any]) -> None:
    (out / RECORD).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def described(device: str) -> str:
    return torch.cuda.get_device_name() if device.startswith("cuda") else device


def write_maps(path: Path, maps: Tensor) -> None:
    """maps: (photographs, names, SIDE, SIDE), written as bytes between each map's extremes."""
    low, high = maps.amin((2, 3), keepdim=True), maps.amax((2, 3), keepdim=True)
    steps = ((maps - low) / (high - low).clamp(min=1e-6) * 255).round().to(torch.uint8)
    np.savez_compressed(path, steps=steps.numpy(), low=low.numpy(), high=high.numpy())


def load_maps(path: Path) -> Tensor:
    """What `write_maps` wrote."""
    with np.load(path) as arrays:
        steps, low, high = (torch.from_numpy(arrays[name]).float() for name in ("steps", "low", "high"))
    found: Tensor = low + steps / 255 * (high - low)
    return found


main = study_main(
    __name__,
    __doc__,
    train,
    None,
    option("--seconds", type=float, default=75.0, metavar="S", help="of learning captions (default: 75)"),
    option("--fold-seconds", type=float, default=12.0, metavar="S", help="of learning boxes, 4 times (default: 12)"),
    option("--canvases", type=int, default=128, metavar="N", help="per step (default: 128)"),
    DEVICE,
)

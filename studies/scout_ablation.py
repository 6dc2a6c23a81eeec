"""Ablation of the ranker's inputs, and one network trained end to end on the same questions.

    python -m studies.scout_ablation PAGES --spotter WEIGHTS --out DIR [--steps N] [--device cuda]

PAGES is a folder from `texturevlm pack-pages`. Each variant is trained on the same questions for the same number of
steps and evaluated on held-out documents. The network that is trained end to end has the layers of spotter and ranker
together, and is not taught to read.
"""

import argparse
import platform
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from studies.study import option, run_study, study_parser
from texturevlm.channels.pretrained import torch_device
from texturevlm.check import check_count
from texturevlm.evaluate.markdown import markdown_page, markdown_table
from texturevlm.scout.question import encode
from texturevlm.scout.ranker import BLOCK_DILATIONS
from texturevlm.scout.spotter import SPOT, Spots, Spotter
from texturevlm.train.config import FitConfig
from texturevlm.train.fit import fit
from texturevlm.train.pages import load_pages
from texturevlm.train.ranker_task import RankerTask

LEFT_OUT = ("along", "kinds", "seen", "text", "place")
WORDS = {
    "along": "without the running maxima along rows and columns",
    "kinds": "without what kind of text a spot is",
    "seen": "without the spots' own embeddings",
    "text": "without where text is and how high",
    "place": "without the place on the page",
}


class EndToEnd(RankerTask):
    """Spotter and ranker as one network that learns from the questions alone."""

    def __init__(self, prepared: RankerTask) -> None:
        """prepared: whose questions are used"""
        self.settings, self.device, self.examples = prepared.settings, prepared.device, prepared.examples
        self.learned, self.evaluated = prepared.learned, prepared.evaluated
        self.evaluated_charts = prepared.evaluated_charts
        pages = load_pages(self.settings.pages)[: self.settings.limit]
        self.images = [torch.from_numpy(page.image)[None, None].to(self.device) for page in pages]
        self.letters = encode([question for page in pages for question, _ in page.questions]).letters.to(self.device)
        self.module = nn.ModuleDict({"spotter": Spotter(), "ranker": self.new_ranker()})

    @property
    def ranker(self) -> nn.Module:
        return self._part("ranker")

    def _part(self, name: str) -> nn.Module:
        assert isinstance(self.module, nn.ModuleDict)
        return self.module[name]

    def spots_of(self, pages: Sequence[int]) -> tuple[Spots, Tensor]:
        chosen = [self.images[page] for page in pages]
        extents = torch.tensor([image.shape[2:] for image in chosen])
        height, width = (int(extent) for extent in extents.amax(0))
        batch = torch.full((len(chosen), 1, height, width), 255, dtype=torch.uint8, device=self.device)
        for row, image in zip(batch, chosen):
            row[:, : image.shape[2], : image.shape[3]] = image[0]
        return self._part("spotter")(batch.float() / 255), extents // SPOT

    def questions(self, batch: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
        _, traits, asked = super().questions(batch)
        spotter = self._part("spotter")
        assert isinstance(spotter, Spotter)
        return spotter.question(self.letters[list(batch)], traits), traits, asked


def measure(settings: RankerTask.Settings, config: FitConfig) -> Iterator[tuple[str, dict[str, float]]]:
    """Each variant with its evaluation after its steps, as soon as it is known; the dearest first."""
    task = RankerTask(settings, device=config.device)
    with tempfile.TemporaryDirectory() as folder:
        torch.manual_seed(config.seed)
        yield "one network, end to end", fit(EndToEnd(task), config, Path(folder) / "one")
        for left_out in (None, *LEFT_OUT):
            torch.manual_seed(config.seed)
            task.module = task.new_ranker(() if left_out is None else (left_out,))
            name = "spotter and ranker" if left_out is None else WORDS[left_out]
            yield name, fit(task, config, Path(folder) / str(left_out))
        torch.manual_seed(config.seed)
        task.module = task.new_ranker(blocks=len(BLOCK_DILATIONS))
        yield f"{len(BLOCK_DILATIONS)} blocks a scale", fit(task, config, Path(folder) / "deep")


def report(found: dict[str, dict[str, float]], config: FitConfig, command: str) -> str:
    where = torch.cuda.get_device_name(config.device) if config.device.startswith("cuda") else platform.machine()
    scores = ("loss", "recall", "recall_blind")
    return markdown_page(
        "# The ranker's parts",
        f"Command: `{command}`; {where}, torch {torch.__version__}. {config.steps} steps each. Questions of documents "
        "that nothing was learned from: cross-entropy of the answer's place, and how often it lies whole in the tenth "
        "of the page that scores highest, with the question and without.",
        markdown_table(
            ("variant", "loss", "recall in the top 10%", "the same, no question"),
            [(name, *(f"{row[score]:.3f}" for score in scores)) for name, row in found.items()],
        ),
    )


def study(options: argparse.Namespace, command: str) -> None:
    check_count("--steps", "N", options.steps, 1)
    device = str(torch_device("--device", options.device))
    config = FitConfig(
        steps=options.steps,
        rate=2e-3,
        warmup=min(100, options.steps),
        decay=0.2,
        clip=1.0,
        device=device,
        precision="bfloat16" if device.startswith("cuda") else "float32",
        save_every=0,
    )
    settings = RankerTask.Settings(options.data, options.spotter, batch=options.batch, limit=options.limit)
    options.out.mkdir(parents=True, exist_ok=True)
    found: dict[str, dict[str, float]] = {}
    for name, row in measure(settings, config):
        found[name] = row
        (options.out / "scout-ablation.md").write_text(report(found, config, command), encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = study_parser(
        "scout_ablation",
        __doc__,
        option("--spotter", type=Path, required=True, metavar="WEIGHTS", help="trained weights of the spotter"),
        option("--steps", type=int, default=300, metavar="N", help="(default: 300)"),
        option("--batch", type=int, default=96, metavar="N", help="questions per step (default: 96)"),
        option("--device", default="cpu", metavar="DEVICE"),
    )
    return run_study(parser, arguments, study)


if __name__ == "__main__":
    sys.exit(main())

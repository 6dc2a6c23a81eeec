"""Networks for the tests: some that have learned nothing but are not at rest, and the shipped ones in float32."""

from importlib.resources import files

import torch
from torch import Tensor, nn

from texturevlm.scout.question import encode
from texturevlm.scout.scout import Scout, load_module, load_ranker
from texturevlm.scout.spotter import EMBEDDING, Spots, Spotter
from texturevlm.text.strings import KINDS

SHIPPED = str(files("texturevlm.scout").joinpath("scout.npz"))


def lively(module: nn.Module) -> nn.Module:
    """With normalisations that do something, as after training."""
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.running_mean.normal_(0, 0.3)
            part.running_var.uniform_(0.3, 2)
            nn.init.normal_(part.weight, 1, 0.2)
            nn.init.normal_(part.bias, 0, 0.3)
    return module.eval()


def shipped() -> Scout:
    """The shipped scout as it was trained: on some CPUs `load_scout` rounds it to bfloat16."""
    spotter = load_module(Spotter(), SHIPPED, prefix="spotter.")
    return Scout(spotter, load_ranker(SHIPPED, prefix="ranker."))


def random_spots(batch: int, rows: int, columns: int) -> Spots:
    words = nn.functional.normalize(torch.randn(batch, EMBEDDING, rows, columns), dim=1)
    maps = torch.randn(batch, rows, columns)
    return Spots(words, 2 * maps, torch.randn(batch, len(KINDS), rows, columns), 2.5 + 0.3 * maps)


def random_question(text: str = "What is the total amount?", batch: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    """Words (at random), traits and what is asked, as `Ranker` takes them."""
    _, traits, asked = encode([text] * batch)
    words = nn.functional.normalize(torch.randn(batch, traits.shape[1], EMBEDDING), dim=2)
    return words * traits[..., :1], traits, asked

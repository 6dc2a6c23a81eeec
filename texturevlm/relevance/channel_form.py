"""The named weights of the channel scorer: a linear form per kind of image, trained, or stated where nothing can train.

`texturevlm train examples/train/channels.toml` makes the file in the package. Channels that no training image has (a
gaze, a previous frame) keep the weights of PRIOR.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from importlib.resources import files
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from texturevlm.channels.registry import CHANNELS
from texturevlm.relevance.channel_features import CHANNEL_FEATURES
from texturevlm.scout.weights import read_weights

IMAGE_KINDS = ("page", "photograph", "chart")
# Weights of the logarithm of relevance that no data taught: a channel of 1 makes a cell exp(weight) times as relevant.
PRIOR = {
    "gaze": 5.0,  # a person looked there: it outweighs what the image suggests
    "attention": 4.0,
    "previous_attention": 1.0,  # one pass old
    "previous_relevance": 2.0,
    "previous_saliency": 0.5,
    "motion": 3.0,
    "fixation_history": -1.0,  # what was seen needs no second look
}
_SHIPPED = "channels.safetensors"


class ChannelForm(nn.Module):
    """logit of a cell = Σ weight · (feature − mean) / spread, per kind of image, plus PRIOR.

    weight: (kinds, features); mean and spread: of the training cells; digest: of the names of channels and features
    """

    weight: Tensor
    mean: Tensor
    spread: Tensor
    digest: Tensor

    def __init__(self) -> None:
        super().__init__()
        shape = len(IMAGE_KINDS), len(CHANNEL_FEATURES)
        self.weight = nn.Parameter(torch.zeros(shape))
        self.register_buffer("mean", torch.zeros(shape))
        self.register_buffer("spread", torch.ones(shape))
        self.register_buffer("digest", registry_digest())
        with torch.no_grad():
            self.weight[:, CHANNEL_FEATURES.index("salience")] = 1.0  # untrained, it is salience

    def terms(self, features: Tensor, names: Sequence[str], kind: Tensor) -> dict[str, Tensor]:
        """What each channel adds to the logits: name → (B, N).

        features: (B, N, F), in the order of names; kind: (B,), indices of IMAGE_KINDS
        """
        parts = (self.weight / self.spread, self.weight * self.mean / self.spread)
        slope, shift = (one.to(features.device) for one in parts)  # the form itself stays where it is
        found: dict[str, Tensor] = {}
        for name, values in zip(names, features.unbind(-1)):
            block, _, channel = name.rpartition(".")
            if name in _INDEX:
                index = _INDEX[name]
                part = slope[kind, index, None] * values - shift[kind, index, None]
            elif block == "here" and channel in PRIOR:
                part = PRIOR[channel] * values
            else:
                continue
            found[channel] = found[channel] + part if channel in found else part
        return found

    def logits(self, features: Tensor, names: tuple[str, ...], kind: Tensor) -> Tensor:
        """(B, N): the sum of `terms`, by one product; nothing waits for a GPU, and a graph can capture it."""
        table = _product(self, names, features.device)[kind]  # (B, F + 1)
        return (features @ table[:, :-1, None])[..., 0] + table[:, -1:]

    def table(self, names: Sequence[str]) -> Tensor:
        """(kinds, F + 1) on the CPU: what each feature is multiplied by, and what is added at the end."""
        weight, mean, spread = (one.detach().cpu() for one in (self.weight, self.mean, self.spread))
        slope, shift = weight / spread, weight * mean / spread
        table = torch.zeros(len(IMAGE_KINDS), len(names) + 1)
        for column, name in enumerate(names):
            block, _, channel = name.rpartition(".")
            if name in _INDEX:
                table[:, column] = slope[:, _INDEX[name]]
                table[:, -1] -= shift[:, _INDEX[name]]
            elif block == "here" and channel in PRIOR:
                table[:, column] = PRIOR[channel]
        return table

    def forward(self, features: Tensor, kind: int) -> Tensor:
        """(…, F) → (…): the logits of cells of images of one kind, by the features that any image has."""
        return ((features - self.mean[kind]) / self.spread[kind]) @ self.weight[kind]


_INDEX = {name: index for index, name in enumerate(CHANNEL_FEATURES)}


@lru_cache(maxsize=None)  # never dropped: graphs read it at every replay
def _product(form: ChannelForm, names: tuple[str, ...], device: torch.device) -> Tensor:
    return form.table(names).to(device)


def registry_digest() -> Tensor:
    """16 numbers that change with the names, the number or the order of channels and features."""
    named = hashlib.blake2b("/".join((*IMAGE_KINDS, *CHANNELS, *CHANNEL_FEATURES)).encode(), digest_size=16).digest()
    return torch.tensor(list(named), dtype=torch.float32)


def load_form(path: Path | str | None = None) -> ChannelForm:
    """The weights in the package, or those of a file: weights.safetensors of a run, or what `save_form` wrote."""
    return _loaded(str(path or files("texturevlm.relevance").joinpath(_SHIPPED)))


@lru_cache(maxsize=8)
def _loaded(path: str) -> ChannelForm:
    tensors = read_weights(path, function="ChannelScorer")
    form = ChannelForm()
    wanted = form.state_dict()
    digest = tensors.get("digest")
    if set(tensors) != set(wanted) or digest is None or not torch.equal(digest.float(), wanted["digest"]):
        raise ValueError(
            f"ChannelScorer: {path} must hold weights for this version's {len(CHANNEL_FEATURES)} features of channels, "
            "and holds others; train them with texturevlm train examples/train/channels.toml"
        )
    form.load_state_dict(tensors)
    return form.requires_grad_(False).eval()


def save_form(form: nn.Module, path: Path) -> None:
    """Write weights as the package holds them."""
    save_file({name: value.cpu().contiguous() for name, value in form.state_dict().items()}, path)

"""The base of every adapter: a model, its processor, the normalisation of its pixels, and how to restore it."""

from __future__ import annotations

from collections.abc import Sequence
from threading import RLock
from typing import Any

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

ATTRIBUTE = "texturevlm_adapter"  # of a model that has an adapter
CLIP = ([0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711])
CENTRED = ([0.5, 0.5, 0.5], [0.5, 0.5, 0.5])


class Adapter:
    """One model with its processor, until `restore`.

    side: of a token in samples: the `patch` of the allocations that this model takes
    lock: held while the model runs in a thread: hooks and graphs serve one run at a time
    """

    side: int
    normalisation: tuple[Sequence[float], Sequence[float]]  # mean and standard deviation, if no processor gives them

    def __init__(self, model: Any, processor: Any = None) -> None:
        self.model = model
        self.lock = RLock()
        self._hooks: list[RemovableHandle] = []
        self.use(processor)
        setattr(model, ATTRIBUTE, self)

    def use(self, processor: Any) -> None:
        """Use another processor with the same model."""
        self.processor = processor
        self.tokenizer = getattr(processor, "tokenizer", processor)

    def restore(self) -> Any:
        """Remove the hooks and return the model."""
        for hook in self._hooks:
            hook.remove()
        if getattr(self.model, ATTRIBUTE, None) is self:
            delattr(self.model, ATTRIBUTE)
        return self.model

    def normalised(self, pixels: Tensor) -> Tensor:
        """Pixels (..., 3, P, P) from 0 to 1, normalised as in the training of the model, float32."""
        mean, deviation = self.statistics(pixels.device)
        normalised: Tensor = (pixels.float() - mean) / deviation
        return normalised

    def statistics(self, device: torch.device) -> Tensor:
        """(2, 3, 1, 1): the mean and the standard deviation of that normalisation."""
        images = getattr(self.processor, "image_processor", None)
        found = self.normalisation if images is None else (images.image_mean, images.image_std)
        return torch.tensor(found, device=device)[..., None, None]

    def decode(self, ids: Tensor) -> list[str]:
        """Answers as text."""
        texts: list[str] = self.tokenizer.batch_decode(ids, skip_special_tokens=True)
        return texts

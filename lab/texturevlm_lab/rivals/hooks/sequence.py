"""A prompt on its way through a language model while visual tokens leave it or merge."""

from __future__ import annotations

from collections.abc import Sequence as List
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from texturevlm_lab.rivals import Reduction


@dataclass(frozen=True, eq=False)
class Sequence:
    """B prompts of L tokens, padded on the left; or as they came, as long as nothing is reduced.

    hidden:    (B, L, D)
    position:  (B, L, A), of the rotary embedding, A axes
    live:      (B, L), false for padding
    visual:    (B, L), which tokens are visual
    special:   (B, L), which tokens are signs of the chat template
    token:     (B, L), which row of the prompt's Seen a visual token has
    size:      (B, L), tokens merged into each
    origin:    (B, L), where it stood in the prompt
    deepstack: each (B, L, D), what Qwen3-VL adds to its first layers; zero for text
    """

    hidden: Tensor
    position: Tensor
    live: Tensor
    visual: Tensor
    special: Tensor
    token: Tensor
    size: Tensor
    origin: Tensor
    deepstack: tuple[Tensor, ...] = ()

    @staticmethod
    def of(
        hidden: Tensor, position: Tensor, live: Tensor, visual: Tensor, special: Tensor, deepstack: List[Tensor]
    ) -> Sequence:
        """A prompt before any reduction.

        deepstack: each (n, D), for all visual tokens of the batch
        """
        spread = [torch.zeros_like(hidden).masked_scatter(visual[..., None], one.to(hidden)) for one in deepstack]
        token = (visual.long().cumsum(1) - 1).clamp(min=0)
        origin = torch.arange(hidden.shape[1], device=hidden.device).expand(live.shape)
        size = torch.ones(live.shape, device=hidden.device)
        return Sequence(hidden, position, live, visual, special, token, size, origin, tuple(spread))

    def places(self, sample: int) -> Tensor:
        """Where the visual tokens of a sample stand."""
        return self.visual[sample].nonzero()[:, 0]

    def asking(self, sample: int, ending: int = 0) -> Tensor:
        """Where the question's tokens stand: the text behind the last visual token, at least the last token.

        ending: tokens at the end that are the answer
        """
        index = self.live[sample].nonzero()[:, 0]
        index = index[: len(index) - ending]
        seen = self.places(sample)
        behind = index[index > seen[-1]] if len(seen) else index
        return behind if len(behind) else index[-1:]

    def wording(self, sample: int, ending: int = 0) -> Tensor:
        """Where the question's words stand: as `asking`, but before the image if only special tokens are behind it."""
        asking = self.asking(sample, ending)
        words = self.live[sample] & ~self.visual[sample] & ~self.special[sample]
        if bool(words[asking].any()):
            return asking
        before = words[: int(asking[0])].nonzero()[:, 0]
        return before if len(before) else asking

    def slots(self, sample: int, origin: Tensor) -> Tensor:
        """Where the tokens of a sample stand that stood at `origin` in the prompt."""
        index = self.live[sample].nonzero()[:, 0]
        return index[torch.searchsorted(self.origin[sample, index].contiguous(), origin)]

    def reduced(self, reductions: List[Reduction]) -> Sequence:
        """Without what was dropped or merged, one reduction per sample."""
        parts = [self._sample(sample, one) for sample, one in enumerate(reductions)]
        longest = max(len(one.live) for one in parts)
        names = ("hidden", "position", "live", "visual", "special", "token", "size", "origin")
        found = {name: _left([getattr(one, name) for one in parts], longest) for name in names}
        found["size"] = torch.where(found["live"], found["size"], 1.0)
        deepstack = [_left(list(one), longest) for one in zip(*(one.deepstack for one in parts))]
        return Sequence(**found, deepstack=tuple(deepstack))

    def _sample(self, sample: int, reduction: Reduction) -> Sequence:
        """One sample without its padding: (L, ...)"""
        where, size = self.places(sample), self.size[sample]
        text = (self.live[sample] & ~self.visual[sample]).nonzero()[:, 0]
        index = torch.cat([text, where[reduction.kept]]).sort().values
        visual = self.visual[sample][index]

        def merged(values: Tensor) -> Tensor:
            kept = values[index]
            if not reduction.merges:
                return kept
            mean = reduction.mean(values[where], size[where]).to(kept.dtype)
            return kept.masked_scatter(visual.view(-1, *[1] * (kept.dim() - 1)), mean)

        one = Sequence(
            merged(self.hidden[sample]),
            self.position[sample][index],
            self.live[sample][index],
            visual,
            self.special[sample][index],
            self.token[sample][index],
            size[index].masked_scatter(visual, reduction.sizes(size[where])),
            self.origin[sample][index],
        )
        return replace(one, deepstack=tuple(merged(values[sample]) for values in self.deepstack))

    def restored(self, length: int) -> Tensor:
        """(B, length, D): hidden states where their tokens stood in the prompt; zero where a token left."""
        out = self.hidden.new_zeros(len(self.hidden), length, self.hidden.shape[-1])
        sample, slot = self.live.nonzero(as_tuple=True)
        return out.index_put((sample, self.origin[sample, slot]), self.hidden[sample, slot])


def _left(values: List[Tensor], longest: int) -> Tensor:
    """(l, ...) each → (B, longest, ...), padded on the left with zeros."""
    if all(len(one) == longest for one in values):
        return torch.stack(list(values))
    return pad_sequence([one.flip(0) for one in values], batch_first=True).flip(1)

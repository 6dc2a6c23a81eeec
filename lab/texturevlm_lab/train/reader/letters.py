"""An auxiliary head that is dropped after training: which letters stand in the left and the right half of each patch.

It tells the tower where to look long before the language model can: reading begins within a minute instead of many.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from texturevlm_lab.train.reader.alphabet import PAD, VOCABULARY
from texturevlm_lab.train.reader.forward import Prompts, answer_starts
from texturevlm_lab.train.reader.network import PATCH

_BLANK = 0.5  # weight of the halves without a letter


class LetterHead(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, 2 * VOCABULARY)
        half = PATCH / 2
        corners = torch.tensor([[-half, -half], [half, -half], [-half, half], [half, half]])
        self.corners: Tensor
        self.register_buffer("corners", corners, persistent=False)  # made once: a captured step copies nothing

    def forward(self, patches: Tensor, prompts: Prompts, centre: Tensor, step: Tensor, marks: Tensor) -> Tensor:
        """The loss.

        patches:      (B, 4K, d), hidden states
        centre, step: (B, K, 2), of the tokens in pixels
        marks:        (B, T, 2), about where each letter of the answer stands, x then y; far outside for blanks
        """
        middle = (centre[:, :, None] + self.corners * step[:, :, None]).flatten(1, 2)  # of patches
        reach = (step[:, :, None] * (PATCH / 2)).expand(-1, -1, 4, -1).flatten(1, 2)
        gap = marks[:, :, None] - middle[:, None]  # (B, T, 4K, 2)
        found, where = (gap.abs() <= reach[:, None]).all(-1).max(-1)
        number = torch.arange(marks.shape[1], device=centre.device)[None] + answer_starts(prompts.ids)[:, None] + 1
        found = found & (number < prompts.length[:, None] - 1)
        letter = prompts.ids.gather(1, number.clamp(max=prompts.ids.shape[1] - 1))
        right = gap[..., 0].gather(2, where[..., None])[..., 0] > 0
        slot = where * 2 + right.long()
        count = patches.shape[1] * 2
        chances = functional.log_softmax(self.out(self.norm(patches)).float().view(len(patches), count, -1), -1)
        hit = chances.flatten(1).gather(1, slot * VOCABULARY + letter)
        letters = -(hit * found).sum() / found.sum().clamp(min=1)
        empty = torch.zeros(len(patches), count, device=centre.device).scatter_add_(1, slot, found.float()) == 0
        blank = -(chances[..., PAD] * empty).sum() / empty.sum().clamp(min=1)
        return letters + _BLANK * blank

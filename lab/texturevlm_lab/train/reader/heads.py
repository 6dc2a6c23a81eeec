"""Auxiliary heads that are dropped after training; they tell the network where to look.

The letter head says which letters stand in the left and the right half of each patch. It tells the tower where to look
long before the language model can: reading begins within a minute instead of many. The place head says which visual
tokens show the answer, and which its label: a reader that reads well still answers with another value of the page.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from texturevlm_lab.train.reader.alphabet import PAD, VOCABULARY
from texturevlm_lab.train.reader.forward import Prompts, answer_starts
from texturevlm_lab.train.reader.network import PATCH, TOKEN_SIDE

_BLANK = 0.5  # weight of the halves without a letter
_WIDTH, _PLACES = 64, 2


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
        """The cross-entropy of the letters in the halves of patches.

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


class PlaceHead(nn.Module):
    """Compares the hidden state where the answer begins with those of the visual tokens."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.query, self.key = nn.Linear(width, _PLACES * _WIDTH, bias=False), nn.Linear(width, _PLACES * _WIDTH)
        nn.init.zeros_(self.query.weight)  # a head that knows nothing yet must not disturb what was learned

    def forward(self, visual: Tensor, answer: Tensor, wanted: Tensor) -> Tensor:
        """The cross-entropy of the places, over those that a prompt has.

        visual: (B, K, D), hidden states of the visual tokens
        answer: (B, D), hidden state of the token that the answer follows
        wanted: (B, 2, K), of the answer and of its label, from `token_shares`
        """
        query = self.query(self.norm(answer)).unflatten(-1, (_PLACES, _WIDTH)).float()
        key = self.key(self.norm(visual)).unflatten(-1, (_PLACES, _WIDTH)).float()
        score = torch.einsum("bpd,bkpd->bpk", query, key) * _WIDTH**-0.5
        loss: Tensor = -(wanted * score.log_softmax(2)).sum() / wanted.sum().clamp(min=1)
        return loss


def token_shares(centre: Tensor, step: Tensor, used: Tensor, boxes: Tensor) -> Tensor:
    """(B, K): how much of its area each token spends on the boxes; sums to 1, or to 0 if no token shows them.

    centre, step: (B, K, 2), of the tokens in pixels
    used:         (B,), how many of the tokens are used, the first ones
    boxes:        (B, N, 4), xyxy in pixels; those without area count for nothing
    """
    half = step * (TOKEN_SIDE / 2)
    low, high = (centre - half)[:, :, None], (centre + half)[:, :, None]
    shared = (torch.minimum(high, boxes[:, None, :, 2:]) - torch.maximum(low, boxes[:, None, :, :2])).clamp(min=0)
    covered = shared.prod(-1).sum(-1) / (4 * half.prod(-1))  # of the token
    covered = covered * (torch.arange(covered.shape[1], device=covered.device) < used[:, None])
    return covered / covered.sum(1, keepdim=True).clamp(min=1e-6)

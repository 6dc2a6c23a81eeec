"""An auxiliary head that is dropped after training: which visual tokens show the answer, and which its label.

A reader that reads well still answers with another value of the page. Both places are known in training, so the middle
of the language model is told where to look, as the letter head tells the tower.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from texturevlm_lab.train.reader.network import TOKEN_SIDE

WIDTH, _PLACES = 64, 2


class PlaceHead(nn.Module):
    """Compares the hidden state where the answer begins with those of the visual tokens."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.query, self.key = nn.Linear(width, _PLACES * WIDTH, bias=False), nn.Linear(width, _PLACES * WIDTH)
        nn.init.zeros_(self.query.weight)  # a head that knows nothing yet must not disturb what was learned

    def forward(self, visual: Tensor, answer: Tensor, wanted: Tensor) -> Tensor:
        """The cross-entropy of the places, over those that a prompt has.

        visual: (B, K, D), hidden states of the visual tokens
        answer: (B, D), hidden state of the token that the answer follows
        wanted: (B, 2, K), of the answer and of its label, from `token_shares`
        """
        query = self.query(self.norm(answer)).unflatten(-1, (_PLACES, WIDTH)).float()
        key = self.key(self.norm(visual)).unflatten(-1, (_PLACES, WIDTH)).float()
        score = torch.einsum("bpd,bkpd->bpk", query, key) * WIDTH**-0.5
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

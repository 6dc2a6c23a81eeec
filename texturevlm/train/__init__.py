"""Learning what matters: soft selection that gradients pass through, losses, and the loop; train soft, deploy hard."""

from texturevlm.train.relax import relaxed_top_k
from texturevlm.train.soft import SoftTokens, soften
from texturevlm.train.tiles import Tiles

__all__ = ["SoftTokens", "Tiles", "relaxed_top_k", "soften"]

"""Tokens: embeddings from a vision tower, for a language model.

Each token has its own position and size, because merged or weighted tokens are no longer one footprint each.
"""

from dataclasses import dataclass

from torch import Tensor

from texturevlm.check import check_floating, check_shapes


@dataclass(frozen=True, eq=False)
class Tokens:
    """K embeddings per image.

    embeds:   (B, K, D), zero in unused slots
    position: (B, K, 2), x then y of the centre in level-0 pixels
    size:     (B, K, 2), width then height of the area in level-0 pixels
    weight:   (B, K), weight of each token; 0 in unused slots
    deepstack: further embeddings, each (B, K, D), which Qwen3-VL adds to its first layers; empty for other models
    """

    embeds: Tensor
    position: Tensor
    size: Tensor
    weight: Tensor
    deepstack: tuple[Tensor, ...] = ()

    def __post_init__(self) -> None:
        check_floating("Tokens", embeds=self.embeds, position=self.position, size=self.size, weight=self.weight)
        check_shapes(
            "Tokens",
            embeds=(self.embeds, "B K D"),
            position=(self.position, "B K 2"),
            size=(self.size, "B K 2"),
            weight=(self.weight, "B K"),
        )
        for index, layer in enumerate(self.deepstack):
            check_shapes("Tokens", embeds=(self.embeds, "B K D"), **{f"deepstack_{index}": (layer, "B K D")})

"""From a picture and a question to the places of its tokens: the one way, for every door.

    picture   = prepare(image, how)            # upright, enlarged where a model wants finer print; what was found in it
    placement = place(picture, question, how)  # footprints in the picture and in the image as given, and why

`how` is a TokenConfig. Several pictures share one budget in `place_together`. What a graph captures is `choose`.
"""

from texturevlm.placement.captured import CapturedChoice, choose, compile
from texturevlm.placement.config import Allocator, TokenConfig
from texturevlm.placement.finer import Finer
from texturevlm.placement.picture import Findings, Picture, prepare
from texturevlm.placement.placement import Placement, in_slots, place, place_together
from texturevlm.placement.sources import open_image
from texturevlm.placement.tokens import choose_tokens

__all__ = [
    "Allocator", "CapturedChoice", "Findings", "Finer", "Picture", "Placement", "TokenConfig", "choose",
    "choose_tokens", "compile", "in_slots", "open_image", "place", "place_together", "prepare",
]  # fmt: skip

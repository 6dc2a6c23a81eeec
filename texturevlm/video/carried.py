"""Channels 15 to 17 and the embeddings, which come from the frame before: what was carried along, written as layers."""

from __future__ import annotations

from torch import Tensor

from texturevlm.channels.registry import EMBEDDING
from texturevlm.video.carry import Carry
from texturevlm.video.layers import Layers


def carried_channels(carry: Carry) -> dict[str, Tensor]:
    """As they were carried to this frame, by name: (1, h, w) each."""
    if carry.relevance is None:
        return {}
    mass = carry.relevance.mass
    found = {"previous_relevance": mass / mass.amax().clamp(min=1e-30)}
    if "history" in carry.maps:
        found["fixation_history"] = carry.maps["history"][:, 0]
    if "saliency" in carry.maps:
        found["previous_saliency"] = carry.maps["saliency"][:, 0]
    if "embedding" in carry.maps:
        found |= {name: carry.maps["embedding"][:, index] for index, name in enumerate(EMBEDDING)}
    return found


def give_channels(carried: dict[str, Tensor], layers: Layers, carry: Carry) -> None:
    """Write them among the layers, and take from there what the next frame will carry."""
    assert carry.relevance is not None
    layers.give(carried)
    for name, of in (("saliency", ("saliency",)), ("embedding", EMBEDDING)):
        if set(of) <= set(layers.names):
            carry.maps[name] = layers.cells(of, carry.relevance.grid)

"""Contexts of visual tokens, made by hand."""

from dataclasses import replace

import torch

from texturevlm_lab.rivals import Context


def random_context(count=60, *, width=16, frames=1, seed=0, images=2):
    """Tokens with everything that any method needs, no two alike; in raster order, on a grid of 5 columns per frame."""
    noise = torch.Generator().manual_seed(seed)

    def drawn(*shape):
        return torch.randn(*shape, generator=noise)

    index = torch.arange(count)
    per_frame = -(-count // frames)
    moment, inside = index // per_frame, index % per_frame
    return Context(
        features=drawn(count, width),
        position=torch.stack([moment, inside // 5, inside % 5], -1).float(),
        size=torch.ones(count),
        weight=torch.ones(count),
        image=index * images // count,
        keys=drawn(2, count, 8),
        queries=drawn(2, count, 8),
        received=drawn(count).exp(),
        shallow=drawn(count).exp(),
        asked=drawn(4, count).softmax(-1),
        question=drawn(4, width),
        pixels=drawn(count, 3, 4, 4),
    )


def plain_context(features, **more):
    """Tokens in one row of one image."""
    features = torch.as_tensor(features, dtype=torch.float32)
    count = len(features)
    column = torch.arange(count).float()
    position = torch.stack([torch.zeros(count), torch.zeros(count), column], -1)
    return replace(
        Context(features, position, torch.ones(count), torch.ones(count), torch.zeros(count, dtype=torch.long)), **more
    )


def permuted(context, order):
    """The same tokens in another order."""
    first = ("features", "position", "size", "weight", "image", "received", "shallow", "pixels")
    changed = {name: getattr(context, name)[order] for name in first}
    changed |= {name: getattr(context, name)[:, order] for name in ("keys", "queries", "asked")}
    return replace(context, **changed)

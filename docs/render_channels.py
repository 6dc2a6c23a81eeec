"""Draws a picture of every channel and writes docs/channels.md: `python docs/render_channels.py`.

Most layers are shown on the photograph, layers about text on a corner of the invoice. Layers that hold a map given by
the caller (attention, gaze, …) are shown with an invented map. Layers about change compare the photograph with itself,
moved by six pixels.
"""

from pathlib import Path

import torch
from PIL import Image

from texturevlm import Texture
from texturevlm.channels import CHANNELS, build
from texturevlm.channels.registry import EMBEDDING_LAYERS
from texturevlm.draw import layer_picture

DOCS = Path(__file__).parent
EXAMPLES = DOCS.parent / "examples"
ON_PAPER = ("edges", "edges_inverted", "high_pass", "edge_distance", "text")
SIDE = 220
HEADER = """\
# The forty channels

A channel is one named layer of a texture: what can be known about an image before anyone asks a question. Their order
is fixed, so an index means the same in every texture that holds all forty. This page is made by `python
docs/render_channels.py`.

```bash
texturevlm channels examples/invoice.png --channels fast --out layers.png
```

```python
import texturevlm as tv

layers = build_channels(tv.Texture.open("examples/photo.jpg"), ["edges", "saliency", "text"])
print(layers.names, layers.levels[0].shape)
```
```text
('edges', 'saliency', 'text') torch.Size([1, 3, 512, 512])
```

Instead of names a preset may stand: `mvp` (13 cheap layers), `fast` (all of cost *free* or *fast*), `all`. Layers
start at level 0, or at the finest level with at most 4 million texels (`base`). A layer whose input is not given is
zero. On a GPU kernels write the layers in place. Times: [results](../results/channels-h200.md); quality:
[results](../results/channels.md).

- `edges` and `edges_inverted` are the two polarities of a centre-surround response, divided by the local variance.
- `edge_distance` is the exact Euclidean distance to the nearest edge, cut off at 64 pixels.
- `saliency` is large where the image changes in both directions, over several mip levels.
- `text` closes and opens strokes at three mip levels and removes ruled lines. It needs no model, and misses vertical
  text and text under about 10 pixels.
- `cluster_id` and the layers of regions come from superpixels in the manner of SLIC, or from SAM's regions.
- `embedding_0` to `embedding_15` are CLIP or SigLIP features, reduced by a PCA (`texturevlm fit-pca`).

## How relevance uses them

`relevance="channels"` fetches every channel at every cell by one call of the sampler: at the cell's level, two and
four levels coarser, averaged over the cell's region, and squared. A linear form per kind of image (page, photograph,
chart) adds them up; `texturevlm look --relevance channels --explain` draws which ones decided. The column *use* says
where a weight comes from: *trained* from answer and object boxes; *stated*, where no training image has the channel
(motion counts less the more of the image moves); *regions* say which cells belong together; *question* is compared
with the question's embedding. The other scorers read no channel but text and saliency.

## The table

*shrinks*: how a texel of the next level is made. *cost*: `free`, `fast` (small stencils), `medium` (several passes) or
`model`. *reach*: how far, in pixels, a changed pixel can change the layer.

| | channel | what it holds | shrinks | cost | needs | reach | use |
|---|---|---|---|---|---|---|---|
"""


def soft_spot(x: float, y: float, spread: float) -> torch.Tensor:
    """An invented map: one soft spot, (1, 64, 64)."""
    at = (torch.arange(64) + 0.5) / 64
    return torch.exp(-((at - x) ** 2 + (at[:, None] - y) ** 2) / (2 * spread**2))[None]


def main() -> None:
    photo = Texture.open(EXAMPLES / "photo.jpg")
    paper = Texture.open(Texture.open(EXAMPLES / "invoice.png").levels[0][..., 880:1300, 700:1220])
    before = Texture.open(photo.levels[0].roll(6, -1))
    earlier = build(before, ["red", "green", "blue", "saliency", "attention"], attention=soft_spot(0.4, 0.3, 0.12))
    given = {
        "relevance": soft_spot(0.45, 0.25, 0.15),
        "fixations": torch.maximum(soft_spot(0.45, 0.2, 0.06), soft_spot(0.75, 0.8, 0.06)),
        "attention": soft_spot(0.43, 0.27, 0.1),
        "gaze": torch.maximum(soft_spot(0.5, 0.22, 0.05), soft_spot(0.3, 0.65, 0.05)),
    }
    lines = HEADER.splitlines()
    folder = DOCS / "channels"
    folder.mkdir(exist_ok=True)
    for name, channel in CHANNELS.items():
        if name in EMBEDDING_LAYERS[1:]:
            continue  # one row for all of them
        shown, title, holds = "–", f"{channel.layer} **{name}**", channel.holds
        if name == EMBEDDING_LAYERS[0]:
            last = CHANNELS[EMBEDDING_LAYERS[-1]]
            title = f"{channel.layer} to {last.layer} **{name}** to **{last.name}**"
            holds = "Dense image-text features, reduced to 16 numbers by a PCA."
        else:
            texture = paper if name in ON_PAPER else photo
            layer = build(texture, [name], previous=earlier if texture is photo else None, **given).levels[0][0, 0]
            picture = layer_picture(name, layer)
            picture = picture.resize((SIDE, round(SIDE * picture.height / picture.width)), Image.Resampling.BOX)
            picture.quantize(64).save(folder / f"{name}.png", optimize=True)
            shown = f"![{name}](channels/{name}.png)"
        reach = "everywhere" if channel.reach is None else f"{channel.reach} px"
        facts = (holds, channel.reduce, channel.cost, channel.needs or "–", reach, channel.use)
        lines.append(f"| {shown} | {title} | {' | '.join(facts)} |")
    (DOCS / "channels.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()

"""Draws a picture of every channel and writes docs/channels.md: `python docs/render_channels.py`.

The photograph serves for most; layers about text are shown on a corner of the invoice. Layers that hold what somebody
gave (attention, gaze, …) are shown with a made-up map, and those about change with the photograph moved by six pixels.
"""

from pathlib import Path

import torch
from PIL import Image

from texturevlm import Texture
from texturevlm.channels import CHANNELS, build
from texturevlm.sheet import layer_picture

DOCS = Path(__file__).parent
EXAMPLES = DOCS.parent / "examples"
ON_PAPER = ("edges", "edges_inverted", "high_pass", "edge_distance", "text")
SIDE = 220


def spot(x: float, y: float, spread: float) -> torch.Tensor:
    """A made-up map: one soft spot, (1, 64, 64)."""
    at = (torch.arange(64) + 0.5) / 64
    return torch.exp(-((at - x) ** 2 + (at[:, None] - y) ** 2) / (2 * spread**2))[None]


def main() -> None:
    photo = Texture.open(EXAMPLES / "photo.jpg")
    paper = Texture.open(Texture.open(EXAMPLES / "invoice.png").levels[0][..., 880:1300, 700:1220])
    before = Texture.open(photo.levels[0].roll(6, -1))
    earlier = build(before, ["red", "green", "blue", "saliency", "attention"], attention=spot(0.4, 0.3, 0.12))
    given = {
        "relevance": spot(0.45, 0.25, 0.15),
        "fixations": torch.maximum(spot(0.45, 0.2, 0.06), spot(0.75, 0.8, 0.06)),
        "attention": spot(0.43, 0.27, 0.1),
        "gaze": torch.maximum(spot(0.5, 0.22, 0.05), spot(0.3, 0.65, 0.05)),
    }
    lines = [
        "# The forty channels",
        "",
        "What can be known about an image before anyone asks a question, one layer each, in this order. `reach` is how",
        "many pixels away a changed pixel can act; `shrinks` is how a layer is mipmapped; `needs` is the argument of",
        "`texturevlm.channels.build` without which it is zero. Made by `python docs/render_channels.py`.",
        "",
        "`build(texture, channels)` takes a preset or a list of names: `mvp` is the 13 cheap ones, `fast` all that",
        "cost little, `all` all forty. All layers of a build start at the same level of the image: at level 0",
        "unless it has more than 4 million pixels, else at the finest level that has not; `base` says otherwise.",
        "What they cost is in [results/channels-h200.md](../results/channels-h200.md) and",
        "[experiments.md](experiments.md), how good they are in [results/channels.md](../results/channels.md). The",
        "embeddings have no picture: they need a model, and none could be downloaded where these were made.",
        "",
        "| | channel | what it holds | shrinks | cost | needs | reach |",
        "|---|---|---|---|---|---|---|",
    ]
    folder = DOCS / "channels"
    folder.mkdir(exist_ok=True)
    for name, channel in CHANNELS.items():
        shown = "–"
        if channel.cost != "model":
            texture = paper if name in ON_PAPER else photo
            layer = build(texture, [name], previous=earlier if texture is photo else None, **given).levels[0][0, 0]
            picture = layer_picture(name, layer)
            picture = picture.resize((SIDE, round(SIDE * picture.height / picture.width)), Image.Resampling.BOX)
            picture.quantize(64).save(folder / f"{name}.png", optimize=True)
            shown = f"![{name}](channels/{name}.png)"
        reach = "everywhere" if channel.reach is None else f"{channel.reach} px"
        facts = (channel.holds, channel.reduce, channel.cost, channel.needs or "–", reach)
        lines.append(f"| {shown} | {channel.layer} **{name}** | {' | '.join(facts)} |")
    (DOCS / "channels.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()

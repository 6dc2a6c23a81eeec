# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Write an allocator in ten lines
#
# An allocator gets the cells of an image and a budget, and returns boxes in pixels with scores, best first.

# %%
from pathlib import Path

import numpy as np

import texturevlm as tv
from texturevlm.allocate.allocator import per_image
from texturevlm.draw import look_picture
from texturevlm.rebuilding import resized

examples = next(folder for folder in (Path("examples"), Path("..")) if (folder / "invoice.png").exists())

# %% [markdown]
# This one splits the square that matters most for its size into four, until the budget is spent. `mass` says how much
# each cell matters; `cell` is the height and width of a cell in pixels.


# %%
@per_image()
def split_in_four(cells, budget):
    """Split what matters most into four, again and again."""

    def box(x, y, side):
        (tall, wide), right, down = cells.cell, x + side, y + side
        inside = cells.mass[int(y / tall) : int(np.ceil(down / tall)), int(x / wide) : int(np.ceil(right / wide))]
        return (x, y, right, down), float(inside.sum()) * (side > cells.patch)

    found = [box(0.0, 0.0, float(max(cells.size)))]
    while len(found) + 3 <= budget and max(score for _, score in found) > 0:
        (x, y, right, _), _ = found.pop(max(range(len(found)), key=lambda index: found[index][1]))
        found += [box(x + dx, y + dy, (right - x) / 2) for dy in (0, (right - x) / 2) for dx in (0, (right - x) / 2)]
    return sorted(found, key=lambda one: -one[1])


# %% [markdown]
# Nothing has to be registered: `allocator=` takes a name or a function.

# %%
texture = tv.generate_mipmaps(examples / "invoice.png")
mine = tv.choose_tokens(texture, "What is the total?", budget=96, relevance="scout", allocator=split_in_four)
print(int(mine.valid.sum()), "tokens, the finest at level", round(float(mine.level[mine.valid].min()), 2))
picture = look_picture(texture, mine, (1056, 1227))
picture

# %% [markdown]
# Is it any good? The same budget, the same relevance, the box where the answer stands; the mean error against the
# original. The error alone does not decide: `auto` stops where print is legible, and spends the rest on other places.

# %%
box = (952, 1204, 1160, 1250)
original = texture.levels[0][..., box[1] : box[3], box[0] : box[2]]
errors = {"resized": float((resized(texture, budget=96, box=box) - original).abs().mean())}
for name, allocator in {"mine": split_in_four, "auto": "auto", "quadtree": "quadtree"}.items():
    chosen = tv.choose_tokens(texture, "What is the total?", budget=96, relevance="scout", allocator=allocator)
    errors[name] = float((tv.rebuild(texture, chosen, box=box) - original).abs().mean())
print({name: round(error, 4) for name, error in errors.items()})

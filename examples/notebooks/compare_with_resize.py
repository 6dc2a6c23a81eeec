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
# # Compare with resize on your own pages
#
# The plain way to spend fewer tokens is to resize the page. Put your own pages here, with a question each and the box
# in which its answer stands (x0, y0, x1, y1 in pixels).

# %%
from pathlib import Path
from statistics import mean

import texturevlm as tv
from texturevlm.draw import stacked, to_pil
from texturevlm.rebuilding import resized

examples = next(folder for folder in (Path("examples"), Path("..")) if (folder / "invoice.png").exists())
pages = [
    (examples / "invoice.png", "What is the total?", (952, 1204, 1160, 1250)),
    (examples / "invoice.png", "What is the invoice number?", (1040, 188, 1152, 208)),
]
budgets = (32, 96, 273)

# %% [markdown]
# Both ways deliver a picture of the page from as many tokens. Their error in the box says how much of the answer is
# left; 0 is the original.


# %%
def errors(texture, question, box, budget):
    """Mean absolute error in the box: resized, chosen."""
    x0, y0, x1, y1 = box
    original = texture.levels[0][..., y0:y1, x0:x1]
    chosen = tv.choose_tokens(texture, question, budget=budget, relevance="scout")
    pictures = resized(texture, budget=budget, box=box), tv.rebuild(texture, chosen, box=box)
    return [float((picture - original).abs().mean()) for picture in pictures]


textures = {path: tv.generate_mipmaps(path) for path, _, _ in pages}
table = {budget: [errors(textures[path], question, box, budget) for path, question, box in pages] for budget in budgets}
print("tokens  resized  chosen")
for budget, rows in table.items():
    print(f"{budget:6}  {mean(row[0] for row in rows):7.4f}  {mean(row[1] for row in rows):6.4f}")

# %% [markdown]
# An error is not legibility: where print is legible at a coarser scale, tokens are saved for other places. So look:
# resized above, chosen below.

# %%
path, question, box = pages[0]
texture = textures[path]
chosen = tv.choose_tokens(texture, question, budget=96, relevance="scout")
both = resized(texture, budget=96, box=box), tv.rebuild(texture, chosen, box=box)
picture = stacked([to_pil(one) for one in both])
picture

# %% [markdown]
# Two questions are an example, not a result. `texturevlm eval` does this for a data set, with OCR as the judge and
# paired intervals by page (docs/metric.md).

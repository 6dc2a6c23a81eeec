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
# # Look at an image
#
# Where does a budget of tokens go, and what does a model see of the image? No model is needed to look.

# %%
from pathlib import Path

import texturevlm as tv
from texturevlm.draw import draw, to_pil

examples = next(folder for folder in (Path("examples"), Path("..")) if (folder / "invoice.png").exists())
texture = tv.generate_mipmaps(examples / "invoice.png")
print(texture.size, len(texture.levels), "levels")

# %% [markdown]
# The scout reads the page coarsely and says where the answer to a question is expected. An allocator spends the budget.

# %%
question, how = "What is the total?", tv.TokenConfig(budget=96)
page = tv.prepare(texture, how)
placement = tv.place(page, question, how)
allocation = placement.given
picture = draw([placement], question)
picture

# %% [markdown]
# Each token is a footprint: 32×32 samples of a part of the image. Fine ones lie where it matters, coarse ones show the
# rest. Together they cover what is not blank.

# %%
print("tokens", int(allocation.valid.sum()), "coverage", float(allocation.coverage))
scale = 2**allocation.level
print(f"pixels per sample: from {float(scale.min()):.1f} to {float(scale.max()):.1f}")

# %% [markdown]
# Another question, other tokens. What both share is computed once.

# %%
dated = tv.place(page, "What is the invoice date?", how).given
moved = (dated.centre != allocation.centre).any(-1)[0]
print(int(moved.sum()), "of 96 tokens lie elsewhere")
delivered = to_pil(tv.rebuild(texture, dated))
delivered

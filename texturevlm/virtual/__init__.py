"""Images too large for memory: their pages are read when relevance or samples ask for them.

A source (`sources.py`) stores levels in pages. `mips.py` makes mip levels of them, and `pages.py` keeps the pages that
matter in a budget of bytes and samples through a page table. `build.py` makes such a file from a flat one. What is
relevant, and so what is read, is found in `relevance/refine.py`.
"""

from texturevlm.virtual.build import build_pyramid
from texturevlm.virtual.opening import open_paged
from texturevlm.virtual.pages import VirtualPages
from texturevlm.virtual.sources import PageKey, PageSource, StoredLevel, StoredPage

__all__ = ["PageKey", "PageSource", "StoredLevel", "StoredPage", "VirtualPages", "build_pyramid", "open_paged"]

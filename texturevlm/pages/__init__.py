"""Documents of many pages: one budget of tokens over all of them.

Every page is rendered small, one after the other, and read by the scout (`scouting.py`). The pages where the answer is
expected are rendered finely and get tokens by one rule (`choose.py`, `allocate/share.py`); the others are shown
together on one sheet, if the budget allows (`sheet.py`). Memory does not grow with the number of pages, but for a small
picture of each.
"""

from texturevlm.pages.choose import PageTokens, choose_pages
from texturevlm.pages.document import Pages, is_document, open_pages
from texturevlm.pages.resources import HierarchicalResourceAllocator, SharedBudget, UnitTokens

__all__ = [
    "HierarchicalResourceAllocator", "PageTokens", "Pages", "SharedBudget", "UnitTokens", "choose_pages",
    "is_document", "open_pages",
]  # fmt: skip

"""PyramidDrop (Xing and others, 2024): what the last token attends to, in three stages.

Published: after a quarter, a half and three quarters of the layers, half of the tokens leave, by the query of the last
token of the instruction times the keys.
Ours: the share per stage follows from the budget; at an eighth it is the published half. The rank is that of the
attention behind the softmax, mean over the heads, as for FastV.
"""

from __future__ import annotations

from texturevlm_lab.rivals.fastv import attended_after
from texturevlm_lab.rivals.method import Method

PYRAMIDDROP = Method(tuple(attended_after(quarter / 4) for quarter in (1, 2, 3)))

"""The registry: one entry per method. Each file declares where its stages act and what they need.

Depths are shares: published layers are counted as of 32, and other models get the same share of theirs.
"""

from __future__ import annotations

from texturevlm.reduce.aim import AIM
from texturevlm.reduce.cdpruner import CDPRUNER
from texturevlm.reduce.controls import RANDOM, STRIDE
from texturevlm.reduce.divprune import DIVPRUNE
from texturevlm.reduce.dtoma import DTOMA
from texturevlm.reduce.dyrate import DYRATE
from texturevlm.reduce.fastv import FASTV
from texturevlm.reduce.hired import HIRED
from texturevlm.reduce.holov import HOLOV
from texturevlm.reduce.method import Method
from texturevlm.reduce.mmtok import MMTOK
from texturevlm.reduce.pace import PACE
from texturevlm.reduce.pixelprune import PIXELPRUNE
from texturevlm.reduce.prunevid import PRUNEVID
from texturevlm.reduce.pvc import PVC
from texturevlm.reduce.pyramiddrop import PYRAMIDDROP
from texturevlm.reduce.sparsevlm import SPARSEVLM
from texturevlm.reduce.tome import TOME
from texturevlm.reduce.visionzip import VISIONZIP
from texturevlm.reduce.vispruner import VISPRUNER
from texturevlm.reduce.vscan import VSCAN

METHODS: dict[str, Method] = {
    "random": RANDOM,
    "stride": STRIDE,
    "tome": TOME,
    "visionzip": VISIONZIP,
    "divprune": DIVPRUNE,
    "fastv": FASTV,
    "pyramiddrop": PYRAMIDDROP,
    "sparsevlm": SPARSEVLM,
    "hired": HIRED,
    "cdpruner": CDPRUNER,
    "vispruner": VISPRUNER,
    "holov": HOLOV,
    "mmtok": MMTOK,
    "vscan": VSCAN,
    "aim": AIM,
    "prunevid": PRUNEVID,
    "pixelprune": PIXELPRUNE,
    "pace": PACE,
    "pvc": PVC,
    "dtoma": DTOMA,
    "dyrate": DYRATE,
}

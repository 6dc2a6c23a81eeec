"""The registry: one entry per method. Each file declares where its stages act and what they need.

Depths are shares: published layers are counted as of 32, and other models get the same share of theirs.
"""

from __future__ import annotations

from texturevlm_lab.rivals.aim import AIM
from texturevlm_lab.rivals.cdpruner import CDPRUNER
from texturevlm_lab.rivals.controls import RANDOM, STRIDE
from texturevlm_lab.rivals.divprune import DIVPRUNE
from texturevlm_lab.rivals.dtoma import DTOMA
from texturevlm_lab.rivals.dyrate import DYRATE
from texturevlm_lab.rivals.fastv import FASTV
from texturevlm_lab.rivals.hired import HIRED
from texturevlm_lab.rivals.holov import HOLOV
from texturevlm_lab.rivals.method import Method
from texturevlm_lab.rivals.mmtok import MMTOK
from texturevlm_lab.rivals.pace import PACE
from texturevlm_lab.rivals.pixelprune import PIXELPRUNE
from texturevlm_lab.rivals.prunevid import PRUNEVID
from texturevlm_lab.rivals.pvc import PVC
from texturevlm_lab.rivals.pyramiddrop import PYRAMIDDROP
from texturevlm_lab.rivals.sparsevlm import SPARSEVLM
from texturevlm_lab.rivals.tome import TOME
from texturevlm_lab.rivals.visionzip import VISIONZIP
from texturevlm_lab.rivals.vispruner import VISPRUNER
from texturevlm_lab.rivals.vscan import VSCAN

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

"""Many images: choose the tokens of every image of a source, on one machine or on a cluster, and read them back.

`build` lists a source into units and has workers make each of them; what is done stays done, whatever is killed. `open`
gives what was written as data sets of PyTorch.
"""

from texturevlm.corpus.build import Summary, build
from texturevlm.corpus.dataset import Corpus, Stream, open

__all__ = ["Corpus", "Stream", "Summary", "build", "open"]

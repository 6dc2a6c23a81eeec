"""Video: a `TokenStream` takes frames and gives tokens, and computes again only what changed.

`stream.py` decides per frame: is it a keyframe, which tokens move, which patches are sampled. `update.py` (PyTorch) and
`update_gpu.py` (kernels, one CUDA graph) bring texture and channels to the frame, tile by tile; `change.py` finds the
tiles, `carry.py` moves relevance along the flow, `choice.py` holds the tokens, `reuse.py` their patches and embeddings.
`live.py` is the door to a video that is watched and asked about: `conversation.py` keeps what the model has seen in its
cache.
"""

from texturevlm.video.reuse import Rate
from texturevlm.video.settings import StreamSettings
from texturevlm.video.step import Reuse, Step
from texturevlm.video.stream import TokenStream

__all__ = ["Rate", "Reuse", "Step", "StreamSettings", "TokenStream"]

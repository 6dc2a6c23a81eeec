"""Video: frames in; what changed, what to show of a whole clip, and answers while it goes on.

`sources.py` opens what holds frames. `clip.py` spends one budget on a whole video: which moments, and where in each.
`stream.py` (`TokenStream`) takes a video frame by frame and computes again only what changed: `change.py` finds the
tiles, `update.py` brings texture and channels to the frame, `carry.py` moves relevance along the flow, `tokens.py`
holds tokens and patches, `config.py` has the options. `change_gpu.py` and `update_gpu.py` do the same by kernels, in
one captured graph. `live.py` (`VideoStream`, which imports `texturevlm.ask` and so is not named here) joins a stream
and a model: `conversation.py` keeps what the model has seen in its cache, `layout.py` says where that stands.
`picture.py` draws a stream.
"""

from texturevlm.video.clip import (
    Moment,
    MomentEvidence,
    MomentTokens,
    changed_tiles,
    choose_clip,
    keep_moments,
    upright_moments,
)
from texturevlm.video.config import StreamConfig
from texturevlm.video.sources import ARRAYS, Frame, FrameSource, Sampler, bytes_source, is_live, open_video
from texturevlm.video.stream import Reuse, Step, TokenStream
from texturevlm.video.tokens import Rate

__all__ = [
    "ARRAYS", "Frame", "FrameSource", "Moment", "MomentEvidence", "MomentTokens", "Rate", "Reuse", "Sampler", "Step",
    "StreamConfig", "TokenStream", "bytes_source", "changed_tiles", "choose_clip", "is_live", "keep_moments",
    "open_video", "upright_moments",
]  # fmt: skip

"""A conversation about a video that goes on: frames in, words out, the language model's cache alive in between.

`stream.py` is the door: `VideoStream`. `conversation.py` keeps what the model has seen in its cache, `moments.py` the
order and the places of that, `layout.py` where the tokens of a choice stand, `wording.py` the words around them.
`encoder.py` runs the vision tower on what changed, `latest.py` keeps up with a source that does not wait, `state.py`
saves and restores.
"""

from texturevlm.live.state import StreamState
from texturevlm.live.stream import VideoStream

__all__ = ["StreamState", "VideoStream"]

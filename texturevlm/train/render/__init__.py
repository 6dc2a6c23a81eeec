"""Rendered pages: an endless supply of documents with every word's text and box, to train the spotter."""

from texturevlm.train.render.fonts import find_fonts
from texturevlm.train.render.page import RenderedPage, render_page
from texturevlm.train.render.vocabulary import Vocabulary

__all__ = ["RenderedPage", "Vocabulary", "find_fonts", "render_page"]

"""Rendered pages: an endless supply of documents with every word's text and box, to train the spotter."""

from texturevlm_lab.train.render.fonts import find_fonts
from texturevlm_lab.train.render.page import RenderedPage, render_page
from texturevlm_lab.train.render.vocabulary import Vocabulary

__all__ = ["RenderedPage", "Vocabulary", "find_fonts", "render_page"]

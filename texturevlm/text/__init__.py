"""Strings, kinds of words and how common words are: what relevance and scout both need; no images."""

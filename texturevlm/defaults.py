"""Defaults that every public function and every command shares."""

BUDGET = 273  # tokens
PATCH = 32  # side of a token in samples
ALLOCATOR = "auto"  # a name in texturevlm.allocate.ALLOCATORS
RELEVANCE = "auto"  # a name of a scorer
FINE_PAGES = 5  # of a document, that get tokens of their own, at most
MOST_FINE_PAGES = 20  # that may be asked for: each is held in memory while tokens are handed out
TURN = 0  # degrees that the text of images is turned by; `auto` finds them, and takes a few milliseconds

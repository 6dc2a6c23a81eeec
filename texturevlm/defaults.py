"""Defaults that every public function and every command shares."""

BUDGET = 273  # tokens
PATCH = 32  # side of a token in samples
ALLOCATOR = "auto"  # a name in texturevlm.allocate.ALLOCATORS
RELEVANCE = "auto"  # a name of a scorer
TURN = "auto"  # of images that a model is asked about: the angle of their text is found

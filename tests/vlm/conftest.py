"""What several files of tests about models share."""

import pytest

from texturevlm import vlm


@pytest.fixture
def adapter(built):
    """Of the model and processor that a file builds; the model is as before afterwards."""
    adapter = vlm.adapt(*built)
    yield adapter
    adapter.restore()

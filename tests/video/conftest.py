"""What is captured on a GPU runs as captured code in all tests of this folder."""

import pytest


@pytest.fixture(autouse=True)
def as_captured_code(request):
    if "gpu" not in request.keywords:
        request.getfixturevalue("captured_on_cpu")

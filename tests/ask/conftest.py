"""Small models that are asked, one of each family."""

import pytest

from tests.ask import models
from texturevlm import vlm


@pytest.fixture(params=list(models.FAMILIES), scope="module")
def adapter(request):
    return vlm.adapt(*models.built(request.param))


@pytest.fixture(scope="module")
def qwen():
    return vlm.adapt(*models.built("qwen3_vl"))

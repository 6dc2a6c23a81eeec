"""What training reads: schedules and draws known from the step alone, and textures that are made once."""

import pytest
import torch
from PIL import Image
from studies.cache import cached, channel_texture
from texturevlm.train.curriculum import Curriculum, Mark

from studies import cache
from texturevlm.channels import build
from texturevlm.train.schedule import generator_at, rate_at, temperature_at
from texturevlm.types import Texture


def test_rates():
    assert rate_at(0, steps=100, rate=1.0, warmup=10) == pytest.approx(0.1)
    assert rate_at(9, steps=100, rate=1.0, warmup=10) == pytest.approx(1)
    assert rate_at(55, steps=100, rate=1.0, warmup=10) == pytest.approx(0.5)
    assert rate_at(99, steps=100, rate=1.0, schedule="linear") == pytest.approx(0.01)
    assert rate_at(99, steps=100, rate=1.0, schedule="constant") == 1


def test_temperatures_fall_by_equal_factors():
    found = [temperature_at(step, steps=5, first=1.0, last=0.01) for step in range(5)]
    assert found == pytest.approx([1, 10**-0.5, 0.1, 10**-1.5, 0.01])
    assert temperature_at(90, steps=100, first=1.0, last=0.01, hold=0.2) == pytest.approx(0.01)
    with pytest.raises(ValueError, match="must be above 0"):
        temperature_at(0, steps=5, first=1.0, last=0.0)


def test_random_numbers_of_a_step_are_its_own():
    draws = [torch.rand(3, generator=generator_at(*key)).tolist() for key in ((0, 1), (0, 1), (0, 2), (1, 1))]
    assert draws[0] == draws[1] and draws[0] != draws[2] and draws[0] != draws[3]


def test_a_curriculum_goes_from_one_set_to_the_other():
    course = Curriculum({"easy": 10, "real": 5}, [Mark(10, {"easy": 2}), Mark(20, {"easy": 1, "real": 3})])
    assert course.weights(0) == {"easy": 1, "real": 0} == course.weights(10)
    assert course.weights(15) == pytest.approx({"easy": 0.625, "real": 0.375})
    assert course.weights(20) == course.weights(999) == {"easy": 0.25, "real": 0.75}
    assert course.draw(15, 8) == course.draw(15, 8) != course.draw(16, 8)
    drawn = course.draw(500, 2000)
    assert sum(name == "real" for name, _ in drawn) / 2000 == pytest.approx(0.75, abs=0.04)
    assert {index for name, index in drawn if name == "real"} == set(range(5))
    assert Curriculum({"a": 30, "b": 10}).weights(3) == {"a": 0.75, "b": 0.25}
    with pytest.raises(ValueError, match="weights may have easy, got 'eazy'"):
        Curriculum({"easy": 3}, [Mark(0, {"eazy": 1})])
    with pytest.raises(ValueError, match="not all 0"):
        Curriculum({"easy": 3}, [Mark(0, {"easy": 0.0})])


def test_what_was_made_once_is_read_again(tmp_path):
    made = []

    def make():
        made.append(1)
        return {"a": torch.arange(6).view(2, 3).T}

    first, again = (cached(tmp_path, ["x", "y"], make)["a"] for _ in range(2))
    assert torch.equal(first, again) and len(made) == 1
    cached(tmp_path, ["x", "z"], make)
    assert len(made) == 2


def test_textures_are_kept_by_image_and_channels(tmp_path, monkeypatch):
    image = tmp_path / "a.png"
    Image.fromarray((torch.rand(40, 56, 3) * 255).byte().numpy()).save(image)
    found = channel_texture(image, ("red", "edges", "saliency"), tmp_path / "kept", first=1)
    whole = build(Texture.open(image), ("red", "edges", "saliency"), base=0)
    assert found.size == (40, 56) and found.names == whole.names and found.reduce == whole.reduce
    for kept, level in zip(found.levels, whole.levels[1:], strict=True):
        torch.testing.assert_close(kept, level, atol=1e-3, rtol=0)
    monkeypatch.setattr(cache, "build", None)  # from here on nothing can be made
    again = channel_texture(image, ("red", "edges", "saliency"), tmp_path / "kept", first=1)
    assert all(torch.equal(one, two) for one, two in zip(again.levels, found.levels))
    with pytest.raises(TypeError):
        channel_texture(image, ("red", "edges"), tmp_path / "kept", first=1)
    Image.fromarray((torch.rand(40, 56, 3) * 255).byte().numpy()).save(image)
    with pytest.raises(TypeError):
        channel_texture(image, ("red", "edges", "saliency"), tmp_path / "kept", first=1)

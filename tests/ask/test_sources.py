"""Images as users have them: open files, dicts of `datasets`, transparency; what would be misread is refused."""

import io
import re

import numpy as np
import pytest
import torch
from PIL import Image

from tests.ask import models
from tests.ask.models import QUESTION, conversation, inputs_of, picture
from texturevlm.placement import open_image
from texturevlm.types import Texture

CPU = torch.device("cpu")


def level(source):
    return open_image(source, CPU).levels[0]


def png(image):
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize(
    "wrong",
    [
        np.asarray(picture(8, 9)).astype(np.float32),
        np.asarray(picture(8, 9)).astype(np.float64),
        torch.from_numpy(np.array(picture(8, 9))).permute(2, 0, 1).float(),
        torch.randn(3, 8, 9).clamp(-3, 1),  # normalised for a model
    ],
)
def test_floats_outside_0_to_1_are_refused(wrong):
    got = f"{float(wrong.min()):.4g} to {float(wrong.max()):.4g}"
    with pytest.raises(ValueError, match=re.escape(f"floats must have values from 0 to 1, got {got}; give uint8")):
        level(wrong)


def test_what_resampling_overshoots_is_taken():
    level(torch.full((3, 4, 4), 1.04))
    level(torch.full((3, 4, 4), -0.04))


def test_transparency_of_arrays_is_laid_over_white_as_that_of_files():
    pixels = np.random.default_rng(0).integers(0, 256, (9, 7, 4), dtype=np.uint8)
    wanted = level(Image.fromarray(pixels, "RGBA"))
    as_tensor = torch.from_numpy(pixels).permute(2, 0, 1)
    for given in (pixels, pixels / np.float32(255), as_tensor, as_tensor / 255):
        assert (level(given) - wanted).abs().max() <= 1 / 255  # Pillow rounds
    assert (wanted - level(pixels[..., :3])).abs().max() > 0.5


def test_open_files_and_dicts_of_datasets(tmp_path):
    image = picture(8, 9)
    wanted, content = level(image), png(image)
    path = tmp_path / "image.png"
    path.write_bytes(content)
    dicts = ({"bytes": content, "path": "gone.png"}, {"bytes": None, "path": str(path)}, {"path": path})
    for given in (io.BytesIO(content), *dicts):
        assert torch.equal(level(given), wanted)
    with path.open("rb") as file:
        assert torch.equal(level(file), wanted) and torch.equal(level(file), wanted)  # twice
    with pytest.raises(TypeError, match="open file must be binary"), path.open(encoding="latin-1") as file:
        level(file)
    with pytest.raises(ValueError, match="must have bytes or a path, got bytes, path"):
        level({"bytes": None, "path": None})
    with pytest.raises(ValueError, match="must have bytes or a path, got array"):
        level({"array": [1]})


@pytest.mark.filterwarnings("error")
def test_they_are_asked_about_and_processed(qwen):
    image = picture(64, 96)
    asked = models.asked(qwen, budget=4, relevance="none")
    wanted = asked.ask(image, QUESTION, max_new_tokens=3)
    held = {"bytes": png(image), "path": None}
    assert asked.ask(held, QUESTION, max_new_tokens=3) == wanted
    assert asked.ask([io.BytesIO(png(image))], QUESTION, max_new_tokens=3) == wanted
    assert asked.ask(None, conversation(held), max_new_tokens=3) == wanted
    rows = inputs_of(asked.processor, conversation(image))["pixel_values"]
    text = asked.processor.apply_chat_template(conversation(image), add_generation_prompt=True)
    for given in (held, [held], io.BytesIO(png(image)), np.asarray(image)):
        assert torch.equal(asked.processor(text=text, images=given, return_tensors="pt")["pixel_values"], rows)
    with pytest.raises(ValueError, match="floats must have values from 0 to 1"):
        asked.processor(text=text, images=np.asarray(image).astype(float))
    with pytest.raises(ValueError, match="floats must have values from 0 to 1"):
        asked.ask(np.asarray(image).astype(float), QUESTION)


def test_a_texture_is_taken_as_it_is():
    texture = Texture.open(torch.full((3, 4, 4), 7.0))
    assert open_image(texture, CPU) is texture

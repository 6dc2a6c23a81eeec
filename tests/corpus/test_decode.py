"""Which decoder is chosen, and what the decoders of a GPU are asked; those are stand-ins here."""

import io
import sys
from types import ModuleType

import numpy as np
import pytest
import torch
from PIL import Image

from texturevlm.corpus import decode
from texturevlm.corpus.decode import decoder_of, find_decoder, pillow

CPU = torch.device("cpu")


def written(kind="JPEG", mode="RGB", **options):
    file = io.BytesIO()
    picture = np.random.default_rng(0).integers(0, 256, (24, 40, 3), np.uint8)
    Image.fromarray(picture).convert(mode).save(file, kind, **options)
    return file.getvalue()


class Codec(ModuleType):
    """Stands for both libraries: decodes by Pillow, upside down, so that it is seen who did it."""

    def __init__(self):
        super().__init__("codec")
        self.asked, self.fails = 0, False

    def Decoder(self, device_id):
        return self

    def _decoded(self, content):
        self.asked += 1
        if self.fails:
            raise RuntimeError("out of order")
        return torch.from_numpy(pillow(content)[::-1].copy())

    def decode(self, content):
        return self._decoded(content)  # a tensor has .cpu() too

    def decode_jpeg(self, content, device):
        return self._decoded(content).permute(2, 0, 1)


@pytest.fixture(params=["nvimgcodec", "torchcodec"])
def codec(request, monkeypatch):
    made = Codec()
    for module in decode.MODULES.values():
        monkeypatch.setitem(sys.modules, module.partition(".")[0], ModuleType("package"))
        monkeypatch.setitem(sys.modules, module, made if module == decode.MODULES[request.param] else None)
    monkeypatch.setattr(decode, "_own", type("Own", (), {})())
    return request.param, made


def test_on_a_gpu_its_decoder_comes_first(codec):
    name, _ = codec
    assert find_decoder("auto", "cuda") == find_decoder(name, "cuda:1") == name
    assert find_decoder("auto", "cpu") in decode.DECODERS and find_decoder("pillow", "cuda") == "pillow"
    with pytest.raises(ValueError, match=f"decoder '{name}' needs --device cuda, got cpu"):
        find_decoder(name, "cpu")
    other = next(one for one in decode.MODULES if one != name)
    with pytest.raises(ImportError, match=f"decoder '{other}' needs the package .*, which cannot be imported"):
        find_decoder(other, "cuda")


def test_it_decodes_jpegs_and_pillow_the_rest(codec):
    name, made = codec
    read, plain = decoder_of(name, CPU), written(quality=90)
    found = read(plain)
    assert np.array_equal(found, pillow(plain)[::-1]) and found.flags.c_contiguous and made.asked == 1
    turned = Image.Exif()
    turned[0x0112] = 6
    for other in (written("PNG"), written(mode="L"), written(mode="CMYK"), written(exif=turned)):
        assert np.array_equal(read(other), pillow(other))
    assert made.asked == 1
    made.fails = True
    assert np.array_equal(read(plain), pillow(plain)) and made.asked == 2
    with pytest.raises(ValueError, match="cannot be read"):
        read(plain[: len(plain) // 2])

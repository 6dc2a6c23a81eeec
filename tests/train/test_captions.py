"""Packed photographs: all of one size, boxes as shares, nothing that was not for training."""

import pytest
import torch

from tests.train.photos import write_data
from texturevlm.train.captions import Photograph, load_photographs, main, pack
from texturevlm.train.gist import SIDE


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_data(tmp_path_factory.mktemp("photographs"), captioned=4, boxed=8)


def test_what_was_packed_is_read(data, tmp_path):
    assert pack(data, tmp_path) == 4 + 6  # two of the boxed ones are to judge on
    read = load_photographs(tmp_path)
    assert read.pixels.shape == (10, 3, SIDE, SIDE) and read.pixels.dtype == torch.uint8
    assert [len(one.captions) for one in read.listed] == [5] * 4 + [0] * 6
    assert not any("3.jpg" in one.file or "7.jpg" in one.file for one in read.listed[4:])
    red = read.pixels[0].float().mean((1, 2))
    assert red[0] > 200 > 60 > red[1]


def test_boxes_lie_where_the_colour_is(data, tmp_path):
    pack(data, tmp_path)
    read = load_photographs(tmp_path)
    for pixels, one in zip(read.pixels[4:], read.listed[4:]):
        ((name, ((x0, y0, x1, y1),)),) = one.objects
        channel = ["red", "green", "blue"].index(name)
        others = [other for other in range(3) if other != channel]
        y, x = (pixels[channel].float() - pixels[others].float().amax(0) > 60).nonzero().T
        edges = torch.tensor([x.min(), y.min(), x.max() + 1, y.max() + 1]) / SIDE
        assert (edges - torch.tensor([x0, y0, x1, y1])).abs().max() < 0.03


def test_holding_out_goes_by_the_name():
    many = [Photograph(f"flickr8k_small/{number}.jpg", (), ()) for number in range(600)]
    assert 40 < sum(one.held_out for one in many) < 80
    assert [one.held_out for one in many] == [Photograph(one.file, ("a",), ()).held_out for one in many]


def test_the_command(data, tmp_path, capsys):
    assert main([str(data), "--out", str(tmp_path), "--limit", "2"]) == 0
    assert len(load_photographs(tmp_path).listed) == 4 and "4 photographs" in capsys.readouterr().err
    assert main([str(tmp_path), "--out", str(tmp_path)]) == 2
    assert "DATA must hold flickr8k_small/captions.jsonl" in capsys.readouterr().err
    assert main([str(data), "--out", str(tmp_path), "--limit", "0"]) == 2
    with pytest.raises(FileNotFoundError, match=r"load_photographs: .*photographs\.zip must be there; make it"):
        load_photographs(tmp_path / "nothing")

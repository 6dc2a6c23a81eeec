"""Regions of a SAM reach atlas and cascade; a folder that is none is refused by name."""

import json

import pytest
import torch
from PIL import Image

from tests.allocate.test_atlas import diagonal
from tests.allocate.test_hierarchies import photo, relevance_at
from tests.channels.test_segments import folder, segmenter  # noqa: F401 (fixtures)
from texturevlm.allocate import ALLOCATORS
from texturevlm.cli import main
from texturevlm_lab.allocators import regions
from texturevlm_lab.allocators.regions import find_regions, shared_in_regions


def test_mass_is_even_in_a_region_and_stays():
    mass, found = torch.rand(2, 6, 7), torch.randint(0, 3, (2, 6, 7))
    even = shared_in_regions(mass, found)
    torch.testing.assert_close(even.sum((1, 2)), mass.sum((1, 2)))
    for image in range(2):
        assert torch.equal(even[image][found[image] == 0], mass[image][found[image] == 0])
        for number in (1, 2):
            inside = found[image] == number
            torch.testing.assert_close(even[image][inside], mass[image][inside].mean().expand(int(inside.sum())))


@pytest.mark.parametrize("name", ["atlas", "cascade"])
def test_a_sam_by_its_folder_is_a_loaded_one(name, folder, segmenter, monkeypatch):  # noqa: F811
    seen = []

    def known(level, given):
        seen.append((tuple(level.shape), given))
        wide = torch.zeros(1, *level.shape[2:], dtype=torch.int32)
        wide[:, : level.shape[2] // 2] = 1
        return wide

    monkeypatch.setattr(regions, "sam_regions", known)
    relevance, _ = diagonal()
    texture = photo()
    one, other, none = (
        ALLOCATORS[name](texture, relevance, budget=60, patch=16, **more)
        for more in ({"regions": str(folder)}, {"regions": segmenter}, {})
    )
    assert torch.equal(one.boxes, other.boxes) and not torch.equal(one.boxes, none.boxes)
    assert [given is segmenter for _, given in seen] == [False, True]
    assert seen[0][0] == (1, 3, 80, 60)  # the coarsest level that is as fine as a SAM of 64 pixels needs


def test_regions_of_a_sam_lie_on_the_grid(segmenter):  # noqa: F811
    found = find_regions("atlas", segmenter, photo(), relevance_at())
    assert found.shape == (1, 80, 60) and not found.is_floating_point()


def test_what_is_refused(tmp_path, folder, capsys):  # noqa: F811
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"Segmenter.load: model must be .*empty"):
        ALLOCATORS["atlas"](photo(), relevance_at(), budget=9, patch=16, regions=tmp_path / "empty")
    with pytest.raises(ValueError, match="cascade: regions and scan both say"):
        given = {"regions": torch.zeros(1, 80, 60).long(), "scan": relevance_at()}
        ALLOCATORS["cascade"](photo(), relevance_at(), budget=9, patch=16, **given)
    page = str(tmp_path / "page.png")
    Image.new("RGB", (90, 60), "white").save(page)
    common = ["allocate", page, "--relevance", "none", "--device", "cpu", "--budget", "6", "--patch", "16"]
    assert main([*common, "--allocator", "atlas", "--regions", str(tmp_path / "empty")]) == 2
    assert "Segmenter.load: model must be" in capsys.readouterr().err.splitlines()[-1]
    assert main([*common, "--allocator", "layers", "--regions", str(folder)]) == 2
    assert (
        "--regions needs an --allocator that keeps regions whole, such as atlas, got layers" in capsys.readouterr().err
    )
    assert main([*common, "--allocator", "atlas", "--regions", str(folder)]) == 0
    assert json.loads(capsys.readouterr().out)["tokens"]

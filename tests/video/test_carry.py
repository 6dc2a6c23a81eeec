import pytest
import torch

from tests.video.moving import scene, with_box
from texturevlm.channels.structure import luma
from texturevlm.video.carry import Flow, box_coverage, find_flow, follow_box

SIZE = (96, 128)


def test_a_box_follows_what_is_in_it():
    ground = scene(SIZE, stripes=False)
    box = torch.tensor([20.0, 30.0, 52.0, 62.0])
    old = luma(with_box(ground, 20, 30, side=32))
    for index in range(1, 16):
        new = luma(with_box(ground, 20 + 3 * index, 30 + index, side=32))
        box, old = follow_box(box, find_flow(old, new)), new
    assert torch.allclose(box, torch.tensor([65.0, 45.0, 97.0, 77.0]), atol=4)


def test_a_box_grows_with_what_spreads():
    x = torch.arange(128) + 0.5 - 64
    y = (torch.arange(96) + 0.5 - 48)[:, None]
    back = torch.stack([(x * -0.1).expand(96, 128), (y * -0.1).expand(96, 128)])[None]  # a tenth larger
    flow = Flow(back, torch.ones(1, 96, 128, dtype=torch.bool))
    box = follow_box(torch.tensor([44.0, 28.0, 84.0, 68.0]), flow)
    assert 42 < float(box[2] - box[0]) < 46 and abs(float(box[0] + box[2]) / 2 - 64) < 0.5


def test_nothing_to_trust_leaves_it_where_it_is():
    flow = Flow(torch.full((1, 2, 20, 20), 5.0), torch.zeros(1, 20, 20, dtype=torch.bool))
    box = torch.tensor([4.0, 4.0, 10.0, 10.0])
    assert torch.equal(follow_box(box, flow), box)


@pytest.mark.parametrize("box", [(2.0, 3.0, 6.0, 5.0), (1.5, 0.25, 2.0, 4.0), (-5.0, -5.0, 3.0, 2.0)])
def test_a_box_covers_its_area_inside_the_grid(box):
    x0, y0, x1, y1 = box
    area = (min(x1, 8) - max(x0, 0)) * (min(y1, 6) - max(y0, 0))
    assert float(box_coverage(torch.tensor(box), (6, 8)).sum()) == pytest.approx(area)

"""Turned images: the upright frame, footprints that follow the text, and what a model reads of them."""

import math
from dataclasses import replace

import pytest
import torch

import texturevlm as tv
from texturevlm.frame import Frame, TextRegion, check_turn, following, upright_frame, upright_size
from texturevlm.relevance import orientation, prepare
from texturevlm.relevance.orientation import line_angles
from texturevlm.vlm.views import as_read, reading_angle

SIZE = (96, 160)


def stripes(angle, size=(256, 256), period=12.0):
    """Lines of an angle, in degrees from +x towards +y, on paper."""
    y, x = torch.meshgrid(torch.arange(size[0]) + 0.5, torch.arange(size[1]) + 0.5, indexing="ij")
    across = -x * math.sin(math.radians(angle)) + y * math.cos(math.radians(angle))
    return (0.5 + 0.5 * torch.sin(across * (2 * math.pi / period)))[None]


def smooth(size=SIZE):
    """An image without symmetry that can be interpolated: (1, 3, H, W)."""
    y, x = torch.meshgrid(torch.linspace(0, 1, size[0]), torch.linspace(0, 1, size[1]), indexing="ij")
    return torch.stack([x, y, 0.5 + 0.5 * torch.sin(5 * x + 2 * y)])[None]


def footprints(size, patch=8):
    boxes = torch.tensor([[[10.0, 20.0, 26.0, 36.0], [50.0, 40.0, 82.0, 56.0], [70.0, 10.0, 78.0, 18.0]]])
    return tv.Allocation.of_boxes(boxes, size, patch)


@pytest.mark.parametrize("angle", [-40, -15, 0, 5, 30, 44])
def test_the_angle_of_lines_is_found(angle):
    found = line_angles(stripes(angle))
    assert abs(float(found.whole) - angle) <= 1.0
    assert float(found.sure) > 3
    assert found.angle.shape == found.strength.shape == (1, 3, 3)


def test_windows_have_angles_of_their_own_and_blank_ones_have_none():
    image = torch.ones(1, 256, 512)
    image[:, :, 384:] = stripes(30)[..., :128]
    image[:, :, :128] = stripes(0)[..., :128]
    found = line_angles(image)
    assert abs(float(found.angle[0, 0, 0])) <= 1
    assert abs(float(found.angle[0, 0, -1]) - 30) <= 1
    assert float(found.strength[0, 0, 3]) == 0


def test_noise_has_no_angle():
    assert float(line_angles(torch.rand(1, 300, 300, generator=torch.Generator().manual_seed(0))).sure) < 1.5


def test_quarter_turns_lose_nothing():
    texture = tv.Texture(torch.rand(1, 3, *SIZE))
    for quarter, angle in enumerate((0.0, 90.0, 180.0, -90.0)):
        turned = tv.Texture(texture.levels[0].rot90(-quarter, (2, 3)).contiguous())  # clockwise
        assert torch.equal(upright_frame(turned, angle).show(turned).levels[0], texture.levels[0])


@pytest.mark.parametrize("angle", [0.0, 90.0, 180.0, -90.0, 5.0, -120.0])
def test_frames_compose_and_are_inverted(angle):
    outer = Frame.turned(SIZE, angle)
    inner = Frame.stretch((2 * outer.size[0], 3 * outer.size[1]), outer.size)
    both, points = outer.compose(inner), torch.rand(7, 2) * 100
    torch.testing.assert_close(both.apply(points), outer.apply(inner.apply(points)), atol=1e-3, rtol=0)
    torch.testing.assert_close(both.inverse().apply(both.apply(points)), points, atol=1e-3, rtol=0)
    assert (both.size, both.given, both.inverse().size) == (inner.size, SIZE, SIZE)
    assert (outer.angle - angle) % 360 == pytest.approx(0, abs=1e-9) and outer.is_whole == (angle == 0)


@pytest.mark.parametrize("angle", [90.0, 180.0, -90.0, 5.0, 45.0, -120.0])
def test_patches_of_turned_footprints_are_those_of_the_upright_image(angle):
    texture = tv.Texture(smooth())
    frame = upright_frame(texture, angle)
    upright = frame.show(texture)
    height, width = upright.size
    boxes = torch.tensor([[[-8.0, -8.0, 8.0, 8.0], [0.0, -16.0, 16.0, 0.0]]]) + torch.tensor([width, height] * 2) / 2
    allocation = tv.Allocation.of_boxes(boxes, upright.size, 8)
    back = frame.footprints(allocation)
    wanted = tv.sample(upright.mipmapped(), allocation).pixels
    got = tv.sample(texture.mipmapped(), back).pixels
    assert torch.allclose(got, wanted, atol=0.02)
    assert not torch.allclose(tv.sample(texture.mipmapped(), footprints(SIZE)).pixels[:, :2], wanted, atol=0.02)


@pytest.mark.parametrize("angle", [90.0, 180.0, -90.0, 5.0, 45.0, -120.0])
def test_a_model_places_tokens_in_the_upright_frame(angle):
    size = upright_size(SIZE, angle)
    allocation = footprints(size)
    read = as_read("here", Frame.turned(SIZE, angle).footprints(allocation))
    assert read.upright.all()
    for name in ("ddx", "ddy"):
        assert torch.allclose(getattr(read, name), getattr(allocation, name), atol=1e-3)
    moved = allocation.centre - read.centre  # blank corners are cut off, and nothing else
    assert torch.allclose(moved, moved[:, :1].expand_as(moved), atol=1e-3)
    assert (moved > -1).all() and (read.boxes[..., :2] > -1).all()
    if angle % 90 == 0:
        assert read.size == size and torch.allclose(moved, torch.zeros(()), atol=1e-3)
    else:
        assert read.size[0] < size[0] and read.size[1] < size[1]


def test_a_stamp_is_read_upright_at_its_place():
    page, stamp = footprints(SIZE), Frame.turned(SIZE, 30).footprints(footprints(upright_size(SIZE, 30)))
    axes = {name: torch.cat([getattr(page, name)[:, :2], getattr(stamp, name)[:, 2:]], 1) for name in ("ddx", "ddy")}
    mixed = replace(page, **axes)
    read = as_read("here", mixed)
    assert read.size == SIZE
    assert read.upright.all()
    assert torch.equal(read.centre, page.centre)
    assert torch.allclose(read.ddx, page.ddx, atol=1e-5)


def test_a_sign_that_fills_less_than_half_of_an_image_does_not_turn_it():
    """Footprints that follow a sign at 45° are twice as large: by their area the sign was most of the image."""
    boxes = torch.tensor([[[32.0 * x, 32.0 * y, 32.0 * x + 32, 32.0 * y + 32] for y in range(6) for x in range(6)]])
    allocation = tv.Allocation.of_boxes(boxes, (192, 192), 16)
    mixed = following(allocation, [TextRegion(45.0, boxes[0, [7, 8, 9, 13, 14, 15, 19, 20, 21]])])
    turned = ~mixed.upright
    assert int(turned.sum()) == 13 and mixed.area[turned].sum() > mixed.area[~turned].sum()
    assert reading_angle("here", mixed) == 0


def test_the_tokens_of_a_stamp_are_turned_together():
    """A line of three tokens that runs down the page arrives as a line; another stamp of that angle by itself."""
    centre = torch.tensor([[[80.0, 24.0], [80.0, 40.0], [80.0, 56.0], [20.0, 40.0], [150.0, 60.0]]])
    ddx = torch.tensor([[[0.0, 2.0]] * 4 + [[4.0, 0.0]]])
    mixed = replace(
        tv.Allocation.of_boxes(torch.cat([centre - 8, centre + 8], -1), SIZE, 8),
        ddx=ddx,
        ddy=torch.stack([-ddx[..., 1], ddx[..., 0]], -1),
    )
    mixed.ddx[0, 4] *= 3  # most of the area is upright
    mixed.ddy[0, 4] *= 3
    read = as_read("here", mixed)
    assert read.upright.all() and read.size == SIZE
    wanted = torch.tensor([[64.0, 40.0], [80.0, 40.0], [96.0, 40.0], [20.0, 40.0], [150.0, 60.0]])
    assert torch.allclose(read.centre[0], wanted, atol=1e-3)
    beside = replace(mixed, centre=mixed.centre - torch.tensor([76.0, 0.0]))  # it would reach beyond the border
    assert float(as_read("here", beside).boxes[0, :3, 0].min()) == pytest.approx(0, abs=1e-3)


def test_upright_allocations_are_untouched_and_unused_slots_do_not_count():
    allocation = footprints(SIZE)
    assert as_read("here", allocation) is allocation
    allocation.valid[0, 2], allocation.ddx[0, 2] = False, torch.tensor([0.0, -3.0])
    assert as_read("here", allocation) is allocation


def test_mirrored_footprints_and_several_angles_in_a_batch_are_refused():
    allocation = footprints(SIZE)
    mirrored = replace(allocation, ddx=-allocation.ddx)
    with pytest.raises(ValueError, match=r"here: allocation must have footprints with perpendicular axes.*got 3"):
        as_read("here", mirrored)
    turned = Frame.turned(SIZE, 30).footprints(footprints(upright_size(SIZE, 30)))
    both = allocation.each(lambda column: column.repeat(2, *[1] * (column.dim() - 1)))
    both.ddx[1], both.ddy[1] = turned.ddx[0], turned.ddy[0]
    with pytest.raises(ValueError, match="one angle for all images of a batch, got 2"):
        as_read("here", both)


def test_the_colour_of_paper_lies_beyond_the_border():
    image = torch.ones(1, 3, *SIZE)
    image[..., 40:60, 60:100] = 0
    upright = Frame.turned(SIZE, 45.0).show(tv.Texture(image)).levels[0]
    assert (upright[..., :4, :4] == 1).all()
    assert upright.min() < 0.1


def test_blank_corners_are_cut_off():
    image = torch.ones(1, 3, 400, 400)
    image[..., 190:210, 100:300] = 0
    frame = upright_frame(tv.Texture(image), 30.0)
    left = float(frame.inverse().apply(torch.tensor([200.0, 200.0]))[0])  # of the middle of the image
    corner = 100 * math.cos(math.radians(30)) + 10 * math.sin(math.radians(30))
    assert corner < left < corner + 20 and corner < frame.size[1] - left < corner + 20
    assert frame.size[0] < 180
    assert upright_frame(tv.Texture(image), 90.0).size == (400, 400)
    assert upright_frame(tv.Texture(torch.ones(1, 3, 100, 100)), 45.0).size == (142, 142)  # all of it is blank


def test_choose_tokens_turns_footprints():
    torch.manual_seed(0)
    image = torch.ones(1, 3, 400, 300)
    image[..., 100:140:10, 50:250] = 0
    wanted = tv.choose_tokens(tv.Texture(image), budget=12, relevance="none", allocator="layers")
    turned = tv.Texture(image.rot90(-1, (2, 3)).contiguous())
    found = tv.choose_tokens(turned, budget=12, relevance="none", allocator="layers", turn=90)
    assert found.size == turned.size
    upright = tv.sample(tv.Texture(image).mipmapped(), wanted).pixels
    assert torch.allclose(tv.sample(turned.mipmapped(), found).pixels, upright, atol=1e-5)
    shared = tv.choose_tokens([turned, tv.Texture(image)], budget=20, relevance="none", share=True, turn=90)
    assert [one.size for one in shared] == [turned.size, (400, 300)]
    assert not shared[0].upright[shared[0].valid].any()


@pytest.mark.parametrize("turn", ["left", float("nan"), True, None, "90"])
def test_bad_turns_are_refused(turn):
    with pytest.raises(ValueError, match="choose_tokens: turn must be 'auto' or the angle"):
        tv.choose_tokens(tv.Texture(torch.ones(1, 3, 64, 64)), turn=turn)


def test_what_was_prepared_unturned_is_refused():
    texture = tv.Texture(torch.rand(1, 3, 64, 64))
    with pytest.raises(TypeError, match="relevance must be a scorer or its name with turn"):
        tv.choose_tokens(texture, relevance=prepare(texture, "none"), turn=90)


def test_angles_are_kept_between_half_turns():
    assert check_turn("here", 270) == -90
    assert check_turn("here", 360) == 0
    assert check_turn("here", "auto") == "auto"


def test_an_image_without_lines_is_not_turned():
    assert orientation.find_turn(tv.Texture(torch.rand(1, 3, 200, 300))) == 0
    assert orientation.find_turn(tv.Texture(torch.ones(1, 3, 5, 7))) == 0
    with pytest.raises(ValueError, match="one image, got a batch of 2"):
        orientation.find_turn(tv.Texture(torch.ones(2, 3, 50, 70)))


def marked():
    """An image of noise, a map of one of its corners, and where that corner is."""
    torch.manual_seed(0)
    texture = tv.Texture(torch.rand(1, 3, 300, 400))
    there = torch.zeros(1, 30, 40)
    there[0, 2:8, 30:38] = 1
    return texture, there, (300.0, 20.0, 380.0, 80.0)


@pytest.mark.parametrize("turn", [90.0, 180.0, -90.0, 20.0])
@pytest.mark.parametrize("scorer", ["attention", "gaze"])
def test_maps_that_a_scorer_holds_are_turned_with_the_image(turn, scorer):
    texture, there, box = marked()
    relevance = tv.SCORERS["attention"](there) if scorer == "attention" else tv.SCORERS["channels"](gaze=there)
    found = tv.choose_tokens(texture, "where?", budget=12, relevance=relevance, allocator="layers", turn=turn)
    x, y = found.centre[0, found.level[0].argmin()].tolist()
    assert box[0] - 20 <= x <= box[2] + 20 and box[1] - 20 <= y <= box[3] + 20
    assert not found.upright[found.valid].all() or turn == 180


def test_turned_maps_lie_where_the_turned_image_lies():
    texture, there, _ = marked()
    for angle in (90.0, 35.0):
        frame = Frame.turned(texture.size, angle)
        wide = torch.nn.functional.interpolate(there[:, None], texture.size, mode="bilinear").expand(-1, 3, -1, -1)
        wanted = frame.show(tv.Texture((wide.contiguous(),))).levels[0][:, :1]
        found = frame.maps(there)[:, None]
        wanted = torch.nn.functional.interpolate(wanted, found.shape[2:], mode="area")
        assert (found - wanted).abs().mean() < 0.01


def test_each_image_of_a_batch_has_its_own_map():
    torch.manual_seed(0)
    texture = tv.Texture(torch.rand(2, 3, 300, 400))
    maps = torch.zeros(2, 30, 40)
    maps[0, :, :8], maps[1, :, 32:] = 1, 1
    for share in (False, True):
        found = tv.choose_tokens(
            texture, "a", budget=24, relevance=tv.SCORERS["attention"](maps), allocator="layers", turn=180, share=share
        )
        left, right = (float(found.centre[one, found.level[one].argmin(), 0]) for one in (0, 1))
        assert left < 150 and right > 250


def test_an_earlier_frame_is_not_turned():
    texture, _, _ = marked()
    scorer = tv.SCORERS["channels"](previous=texture)
    with pytest.raises(ValueError, match="previous must be upright, got one to be turned by 20°"):
        tv.choose_tokens(texture, budget=12, relevance=scorer, turn=20)
    assert tv.choose_tokens(texture, budget=12, relevance=scorer, share=True).valid.any()

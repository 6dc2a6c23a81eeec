import pytest
import torch

from tests.video.moving import crossing, scene, with_box
from texturevlm.channels import CHANNELS, PRESETS, build
from texturevlm.types import Texture
from texturevlm.video.canvas import Canvas
from texturevlm.video.change import changes, no_noise
from texturevlm.video.layers import AGAIN, CARRIED, Layers
from texturevlm.video.tiles import rectangles

SMALL = [name for name in PRESETS["fast"] if name not in CARRIED]
DEVICE = torch.device("cpu")


def run(frames, size, names):
    """Canvas and layers after each frame, and the colours before it."""
    canvas = Canvas(size, DEVICE, 32)
    layers, noise = Layers(names, canvas), no_noise(size, 32, DEVICE)
    for index, frame in enumerate(frames):
        before = Texture(tuple(level.clone() for level in canvas.levels))
        if index == 0:
            canvas.replace(frame)
            layers.remake()
            continue
        found = changes(frame, canvas.levels[0], noise)
        noise = found.noise
        boxes = rectangles(found.marked, 32, size)
        held = {box: canvas.levels[0][..., box[1] : box[3], box[0] : box[2]].clone() for box in boxes}
        canvas.refresh(frame, found)
        again = layers.refresh(found, held)
        yield canvas, layers, before, found, again, frame


@pytest.mark.parametrize(("size", "parts"), [((256, 320), True), ((150, 221), True), ((90, 120), False)])
def test_layers_equal_rebuilt_ones(size, parts, monkeypatch):
    """In parts, as on a CPU, and in whole, as on a GPU."""
    monkeypatch.setattr(Layers, "_in_parts", parts)
    worst = dict.fromkeys(SMALL, 0.0)
    for canvas, layers, before, _, _, _ in run(crossing(size, 8), size, SMALL):
        wanted = build(Texture((canvas.levels[0].clone(),)).mipmapped(), SMALL, previous=before)
        for slot, name in enumerate(SMALL):
            for got, made in zip(layers.levels, wanted.levels):
                worst[name] = max(worst[name], float((got[:, slot] - made[:, slot]).abs().max()))
    assert max(worst.values()) <= 1e-6, worst


def test_colour_is_exact_where_it_changed_and_near_elsewhere_for_hundreds_of_frames():
    size = (97, 131)
    for canvas, _, before, found, _, frame in run(crossing(size, 300), size, ["red"]):
        wide = found.mask.repeat_interleave(32, 0)[: size[0]].repeat_interleave(32, 1)[:, : size[1]]
        assert torch.equal(canvas.levels[0], torch.where(wide, frame, before.levels[0]))
        difference = torch.nn.functional.avg_pool2d(frame - canvas.levels[0], 4, ceil_mode=True)
        assert difference.abs().max() <= found.threshold[0].max() + 1e-6
    rebuilt = Texture((canvas.levels[0].clone(),)).mipmapped()
    assert all(torch.equal(got, made) for got, made in zip(canvas.levels, rebuilt.levels))


def test_buffers_stay_where_they_are():
    size = (64, 96)
    places = set()
    for canvas, layers, *_ in run(crossing(size, 6), size, SMALL):
        places.add(tuple(level.data_ptr() for level in (*canvas.levels, *layers.levels)))
        assert layers.texture.levels[0] is layers.levels[0] and canvas.texture.levels[0] is canvas.levels[0]
    assert len(places) == 1


def test_channels_of_global_reach_are_made_again_once_a_quarter_changed():
    size, names = (128, 128), ["cluster_id", "boundaries"]
    ground = scene(size)
    frames = [ground] + [with_box(ground, 32 * (index % 4), 32 * (index // 4), 30) for index in range(8)]
    made = [again for *_, again, _ in run(frames, size, names)]
    first = made.index(True)
    assert first >= int(AGAIN * 16) - 1 and not any(made[:first])
    *_, (canvas, layers, *_) = run(frames[: first + 2], size, names)
    wanted = build(Texture((canvas.levels[0].clone(),)).mipmapped(), names)
    assert torch.equal(layers.levels[0], wanted.levels[0])


def test_maps_are_given_within_their_channels_range():
    canvas = Canvas((64, 64), DEVICE, 32)
    layers = Layers(CARRIED, canvas)
    layers.give({"previous_relevance": torch.full((1, 8, 8), 3.0), "fixation_history": torch.rand(1, 8, 8)})
    assert layers.levels[0][:, 0].amax() == 1 and layers.levels[-1][:, 0].amax() == 1
    fading = layers.levels[-1][0, CARRIED.index("fixation_history")]
    assert fading == layers.levels[0][0, CARRIED.index("fixation_history")].max()  # shrinks by max
    assert CHANNELS["fixation_history"].reduce == "max"

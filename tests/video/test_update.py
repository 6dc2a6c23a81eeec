import pytest
import torch

from tests.video.moving import crossing, scene, with_box
from texturevlm.channels import CHANNELS, PRESETS, build
from texturevlm.types import Texture
from texturevlm.video.change import initial_noise
from texturevlm.video.update import AGAIN, CARRIED, FrameUpdate, StreamChannels

SMALL = [name for name in PRESETS["fast"] if name not in CARRIED]
DEVICE = torch.device("cpu")


def run(frames, size, names, parts=True):
    """Held texture and channels after each frame, and the colours before it."""
    update, noise = FrameUpdate(size, 32, DEVICE), initial_noise(size, 32, DEVICE)
    update.channels = StreamChannels(names, update.texture, 32, parts=parts)
    for index, frame in enumerate(frames):
        before = Texture(tuple(level.clone() for level in update.texture.levels))
        if index == 0:
            update.replace(frame)
            continue
        found = update.compare(frame, noise)
        noise = found.noise
        update.apply(frame, found)
        again = update.channels.refresh(found)
        yield update.texture, update.channels, before, found, again, frame


@pytest.mark.parametrize(("size", "parts"), [((256, 320), True), ((150, 221), True), ((90, 120), False)])
def test_layers_equal_rebuilt_ones(size, parts):
    """In parts, as on a CPU, and in whole, as on a GPU."""
    worst = dict.fromkeys(SMALL, 0.0)
    for texture, layers, before, _, _, _ in run(crossing(size, 8), size, SMALL, parts):
        wanted = build(Texture((texture.levels[0].clone(),)).mipmapped(), SMALL, previous=before)
        for slot, name in enumerate(SMALL):
            for got, made in zip(layers.levels, wanted.levels):
                worst[name] = max(worst[name], float((got[:, slot] - made[:, slot]).abs().max()))
    assert max(worst.values()) <= 1e-6, worst


def test_colour_is_exact_where_it_changed_and_near_elsewhere_for_hundreds_of_frames():
    size = (97, 131)
    for texture, _, before, found, _, frame in run(crossing(size, 300), size, ["red"]):
        wide = found.mask.repeat_interleave(32, 0)[: size[0]].repeat_interleave(32, 1)[:, : size[1]]
        assert torch.equal(texture.levels[0], torch.where(wide, frame, before.levels[0]))
        difference = torch.nn.functional.avg_pool2d(frame - texture.levels[0], 4, ceil_mode=True)
        assert difference.abs().max() <= found.threshold[0].max() + 1e-6
    rebuilt = Texture((texture.levels[0].clone(),)).mipmapped()
    assert all(torch.equal(got, made) for got, made in zip(texture.levels, rebuilt.levels))


def test_buffers_stay_where_they_are():
    size = (64, 96)
    places = set()
    for texture, layers, *_ in run(crossing(size, 6), size, SMALL):
        places.add(tuple(level.data_ptr() for level in (*texture.levels, *layers.levels)))
        assert layers.layers.levels[0] is layers.levels[0]
    assert len(places) == 1


def test_channels_of_global_reach_are_made_again_once_a_quarter_changed():
    size, names = (128, 128), ["cluster_id", "boundaries"]
    ground = scene(size)
    frames = [ground] + [with_box(ground, 32 * (index % 4), 32 * (index // 4), 30) for index in range(8)]
    made = [again for *_, again, _ in run(frames, size, names)]
    first = made.index(True)
    assert first >= int(AGAIN * 16) - 1 and not any(made[:first])
    *_, (texture, layers, *_) = run(frames[: first + 2], size, names)
    wanted = build(Texture((texture.levels[0].clone(),)).mipmapped(), names)
    assert torch.equal(layers.levels[0], wanted.levels[0])


def test_maps_are_given_within_their_channels_range():
    layers = StreamChannels(CARRIED, FrameUpdate((64, 64), 32, DEVICE).texture, 32)
    layers.write({"previous_relevance": torch.full((1, 8, 8), 3.0), "fixation_history": torch.rand(1, 8, 8)})
    assert layers.levels[0][:, 0].amax() == 1 and layers.levels[-1][:, 0].amax() == 1
    fading = layers.levels[-1][0, CARRIED.index("fixation_history")]
    assert fading == layers.levels[0][0, CARRIED.index("fixation_history")].max()  # shrinks by max
    assert CHANNELS["fixation_history"].reduce == "max"

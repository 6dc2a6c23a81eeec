import math
import struct

import numpy as np
import pytest
import torch
from PIL import Image

from tests.video.moving import crossing
from texturevlm.video import Frame, FrameSource, Sampler, open_video, sources
from texturevlm.video.picture import write_video

SIZE = (64, 96)


def pictures(count, size=SIZE):
    return [(frame[0] * 255).byte() for frame in crossing(size, count, side=16)]


def folder_of(path, images):
    path.mkdir()
    for index, image in enumerate(images):
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(path / f"frame{index}.png")
    return path


def test_a_folder_is_read_in_the_order_of_its_numbers(tmp_path):
    images = pictures(12)
    source = open_video(folder_of(tmp_path / "clip", images), fps=10)
    frames = list(source)
    assert source.count == len(frames) == 12 and frames[3].time == pytest.approx(0.3)
    assert all(torch.equal(frame.image, image) for frame, image in zip(frames, images))
    assert len(list(source)) == 12 and not source.notes  # it can be read again


def test_a_broken_image_is_left_out_and_named(tmp_path):
    folder = folder_of(tmp_path / "clip", pictures(4))
    (folder / "frame2.png").write_bytes(b"\x89PNG broken")
    source = open_video(folder)
    assert len(list(source)) == 3 and "frame 2 left out" in source.notes[0]


def test_another_size_half_way_is_resized_and_told(tmp_path):
    source = open_video([*pictures(2), *pictures(2, (128, 192))])
    frames = list(source)
    assert {tuple(frame.image.shape) for frame in frames} == {(3, *SIZE)}
    assert len(source.notes) == 2 and "128 × 192 was resized to 64 × 96" in source.notes[0]


def test_forms_may_change_half_way():
    grey = np.full(SIZE, 0.5, dtype=np.float32)
    frames = list(open_video([pictures(1)[0], grey, Image.new("RGBA", SIZE[::-1], (255, 0, 0, 255))]))
    assert [frame.image.shape[0] for frame in frames] == [3, 3, 3] and frames[1].image.unique().tolist() == [128]


def test_nothing_is_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="must hold images"):
        open_video(tmp_path / "empty")
    with pytest.raises(FileNotFoundError, match="no such file"):
        open_video(tmp_path / "missing.mp4")
    with pytest.raises(ValueError, match="must hold at least one frame, got none"):
        list(open_video([]))
    nan = torch.full((3, 8, 8), float("nan"))
    with pytest.raises(ValueError, match=r"at least one frame, got none .*finite"):
        list(open_video([nan]))


def written(path, count=20):
    pytest.importorskip("av")
    with write_video(path, SIZE, 25.0) as add:
        for image in pictures(count):
            add(image.permute(1, 2, 0).numpy())
    return path


def test_a_file_comes_back(tmp_path):
    source = open_video(written(tmp_path / "clip.mp4"))
    frames = list(source)
    assert len(frames) == 20 and source.fps == pytest.approx(25, abs=0.1)
    assert frames[10].time == pytest.approx(0.4, abs=0.02)
    difference = (frames[5].image.float() - pictures(6)[5].float()).abs().mean()
    assert difference < 12


def test_odd_sizes_are_made_even(tmp_path):
    with write_video(tmp_path / "odd.mp4", (65, 97), 25.0) as add:
        add(np.full((65, 97, 3), 200, dtype=np.uint8))
    (frame,) = open_video(tmp_path / "odd.mp4")
    assert frame.image.shape == (3, 66, 98)


def test_a_truncated_file_gives_what_it_has_or_says_why(tmp_path):
    whole = written(tmp_path / "clip.mp4", 40).read_bytes()
    (tmp_path / "half.mp4").write_bytes(whole[: len(whole) // 2])
    try:
        frames = list(open_video(tmp_path / "half.mp4"))
    except ValueError as error:
        assert "half.mp4" in str(error)
    else:
        assert 0 < len(frames) < 40


def test_damage_in_the_middle_does_not_end_it(tmp_path):
    whole = bytearray(written(tmp_path / "clip.mp4", 40).read_bytes())
    middle = len(whole) // 3
    whole[middle : middle + 200] = bytes(200)
    (tmp_path / "damaged.mp4").write_bytes(bytes(whole))
    assert len(list(open_video(tmp_path / "damaged.mp4"))) >= 20


def test_what_is_no_video_is_refused(tmp_path):
    (tmp_path / "text.mp4").write_bytes(b"no video at all" * 50)
    with pytest.raises(ValueError, match=r"text\.mp4 cannot be read as a video"):
        open_video(tmp_path / "text.mp4")


def sound(path):
    """A file with nothing but sound."""
    import wave

    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(bytes(16000))
    return path


def test_sound_alone_is_refused(tmp_path):
    with pytest.raises(
        ValueError, match=r"sound\.wav (must hold a video|cannot be read as a video|must hold at least)"
    ):
        list(open_video(sound(tmp_path / "sound.wav")))


def test_without_a_decoder_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "av", None)
    (tmp_path / "clip.mp4").write_bytes(b"")
    with pytest.raises(ImportError, match=r"texturevlm\[video\]"):
        open_video(tmp_path / "clip.mp4")
    with pytest.raises(ImportError, match=r"texturevlm\[video\]"), write_video(tmp_path / "out.mp4", SIZE, 25.0):
        pass


def test_arrays_are_clips_too(tmp_path):
    frames = torch.stack(pictures(5))
    torch.save(frames, tmp_path / "clip.pt")
    np.save(tmp_path / "clip.npy", frames.permute(0, 2, 3, 1).numpy())
    for name in ("clip.pt", "clip.npy"):
        source = open_video(tmp_path / name, fps=5)
        assert source.count == 5 and torch.equal(torch.stack([one.image for one in source]), frames)


@pytest.mark.parametrize("name", ["clip.pt", "clip.npy"])
def test_an_array_that_is_no_clip_is_refused(tmp_path, name):
    (tmp_path / name).write_bytes(b"nothing of the kind")
    with pytest.raises(ValueError, match="cannot be read as an array"):
        open_video(tmp_path / name)
    flat = torch.zeros(3, 4)
    torch.save(flat, tmp_path / name) if name.endswith("pt") else np.save(tmp_path / name, flat.numpy())
    with pytest.raises(ValueError, match="must hold frames"):
        open_video(tmp_path / name)


def encoded(path, count, size=SIZE, *, pixels="yuv420p", times=None, container="mpegts"):
    """A file by PyAV; times of the frames in hundredths of a second."""
    from fractions import Fraction

    av = pytest.importorskip("av")
    with av.open(str(path), "w", format=container) as file:
        stream = file.add_stream("mpeg2video" if container == "mpegts" else "mpeg4", rate=25)
        stream.height, stream.width, stream.pix_fmt = *size, pixels
        if times:
            stream.codec_context.time_base = Fraction(1, 100)
        file.start_encoding()
        for index, image in enumerate(pictures(count, size)):
            frame = av.VideoFrame.from_ndarray(image.permute(1, 2, 0).numpy(), format="rgb24")
            frame.pts, frame.time_base = (times[index], Fraction(1, 100)) if times else (index, Fraction(1, 25))
            file.mux(stream.encode(frame))
        if count:
            file.mux(stream.encode())
    return path


def test_a_file_may_change_its_size_and_pixel_format_half_way(tmp_path):
    parts = [
        encoded(tmp_path / "one.ts", 6),
        encoded(tmp_path / "two.ts", 6, (128, 192), pixels="yuv422p"),
    ]
    joined = tmp_path / "joined.ts"
    joined.write_bytes(b"".join(part.read_bytes() for part in parts))
    source = open_video(joined)
    frames = list(source)
    assert len(frames) >= 8 and {tuple(frame.image.shape) for frame in frames} == {(3, *SIZE)}
    assert any("resized to 64 × 96" in note for note in source.notes)


def test_uneven_times_come_from_the_file(tmp_path):
    times = [0, 4, 8, 40, 44, 100]
    path = encoded(tmp_path / "uneven.mkv", 6, times=times, container="matroska")
    found = [frame.time for frame in open_video(path)]
    assert found == pytest.approx([time / 100 for time in times], abs=0.011)


def test_a_file_without_frames_is_refused(tmp_path):
    path = encoded(tmp_path / "none.mp4", 0, container="mp4")
    with pytest.raises(ValueError, match=r"none\.mp4"):
        list(open_video(path))


@pytest.mark.parametrize("fps, wanted", [(2, 4), (5, 10), (25, 50), (100, 50), (None, 50)])
def test_frames_are_taken_at_a_rate(fps, wanted):
    """Two seconds of 25 frames each."""
    source = open_video([pictures(1)[0]] * 50, fps=fps, source_fps=25)
    times = [frame.time for frame in source]
    assert len(times) == wanted == source.count
    assert times == pytest.approx([index * 2 / wanted for index in range(wanted)], abs=0.021)


def test_a_list_with_a_rate_is_taken_whole():
    assert [frame.time for frame in open_video(pictures(4), fps=2)] == [0, 0.5, 1, 1.5]


def test_a_varying_frame_rate_brings_no_burst():
    sampler = Sampler(2)
    times = [0, 0.1, 0.2, 0.5, 0.6, 5.0, 5.04, 5.08, 5.5, 5.6]
    assert [time for time in times if sampler.takes(time)] == [0, 0.5, 5.0, 5.5]


def test_a_file_is_taken_at_a_rate(tmp_path):
    source = open_video(written(tmp_path / "clip.mp4"), fps=5)  # 20 frames of 25 per second
    frames = list(source)
    assert [frame.time for frame in frames] == pytest.approx([0, 0.2, 0.4, 0.6], abs=0.041)
    assert source.fps == 5 and source.count == 4


def test_the_first_seconds():
    assert len(list(open_video(pictures(4), source_fps=2, seconds=1))) == 2


def test_a_file_says_how_it_is_turned():
    class Turned:
        rotation = -90  # clockwise, as a telephone held upright writes it

        def to_ndarray(self, format):
            return np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)

    upright = sources._upright(Turned())
    assert upright.shape == (3, 3, 2)
    assert upright[0, 0].tolist() == [9, 0]  # the left column is on top, its lower end first


def test_a_turned_file_is_read_upright(tmp_path):
    """The matrix in the header of a file, as a telephone writes it."""
    plain = written(tmp_path / "clip.mp4")
    first = next(iter(open_video(plain))).image
    content = bytearray(plain.read_bytes())
    one, minus = struct.pack(">i", 1 << 16), struct.pack(">i", -(1 << 16))
    zero = bytes(4)
    straight = one + zero * 3 + one + zero * 3
    at = content.index(straight, content.index(b"tkhd"))
    content[at : at + len(straight)] = zero + one + zero + minus + zero * 4  # a quarter turn, clockwise
    (tmp_path / "turned.mp4").write_bytes(content)
    turned = next(iter(open_video(tmp_path / "turned.mp4"))).image
    assert torch.equal(turned, torch.rot90(first, -1, (1, 2)))


def test_a_camera_that_is_not_there_is_named():
    pytest.importorskip("av")
    for name in ("camera:77", "/dev/video77", "rtsp://127.0.0.1:9/none"):
        with pytest.raises(ValueError, match=f"open_video: {name} cannot be read as a video"):
            open_video(name)


def test_a_live_source_ends_and_a_lost_one_is_noted():
    """Ten seconds unless the caller says otherwise; the camera fails after 30 frames."""

    def read(notes):
        for index in range(30):
            yield Frame(torch.zeros(3, 32, 32, dtype=torch.uint8), index / 2)
        notes.append("after frame 30: the device is gone")

    camera = FrameSource("camera:0", 2.0, None, read, live=True)
    assert len(list(open_video(camera))) == 20
    whole = open_video(camera, seconds=math.inf)
    assert len(list(whole)) == 30 and whole.notes == ["after frame 30: the device is gone"]


@pytest.mark.parametrize("options", [{"fps": 0}, {"fps": math.inf}, {"fps": "2"}, {"source_fps": -1}, {"seconds": 0}])
def test_bad_rates_are_named(options):
    (name,) = options
    with pytest.raises(ValueError, match=f"open_video: {name} must be above 0, got"):
        open_video(pictures(2), **options)

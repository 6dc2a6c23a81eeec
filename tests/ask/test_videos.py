"""Questions about videos: one budget, the model's own video tokens with their times, every kind of source."""

import numpy as np
import pytest
import torch

from tests.ask import models
from tests.video.moving import scene, with_box
from tests.vlm import small
from texturevlm.ask import messages
from texturevlm.ask.session import VideoSession, is_video
from texturevlm.vlm.views import moment_view

QUESTION = models.QUESTION
SIZE = (96, 160)


def film(count=8):
    """(N, H, W, 3) bytes: a square that crosses a still scene, and another scene at the end."""
    ground = scene(SIZE)
    frames = [with_box(ground, 12 * index, 40) for index in range(count - 2)] + [scene(SIZE, seed=7)] * 2
    return (torch.cat(frames).permute(0, 2, 3, 1) * 255).byte().numpy()


@pytest.fixture(scope="module")
def vlm(adapter):
    return models.asked(adapter, budget=40)


def prompts_of(vlm, monkeypatch, *args, **options):
    """What the model gets."""
    seen = []
    generate = type(vlm.model).generate

    def watched(self, **inputs):
        seen.append(inputs)
        return generate(self, **inputs)

    monkeypatch.setattr(type(vlm.model), "generate", watched)
    answer = vlm.ask(*args, max_new_tokens=3, **options)
    return answer, seen


def test_a_video_is_read_in_its_budget(vlm, monkeypatch):
    answer, (inputs,) = prompts_of(vlm, monkeypatch, film(), QUESTION, fps=2)
    assert isinstance(answer, str)
    mark = small.VIDEO if vlm.adapter.videos else small.IMAGE
    marked = int((inputs["input_ids"] == mark).sum())
    lines = int((inputs["input_ids"] == small.VISION_START).sum())  # LLaVA-OneVision adds a new line per image
    assert 8 < marked <= 40 + (lines or 8)
    assert ("pixel_values_videos" in inputs) == vlm.adapter.videos


def test_moments_have_their_times(qwen, monkeypatch):
    """Two frames per moment; its time is between them, as Qwen's own processor says it."""
    vlm = models.asked(qwen, budget=40)
    _, (inputs,) = prompts_of(vlm, monkeypatch, film(), QUESTION, fps=2)
    text = vlm.adapter.tokenizer.decode(inputs["input_ids"][0])
    times = [part.split("seconds")[0].replace(" ", "") for part in text.split("<")[1:] if "seconds" in part]
    assert times[0].startswith("0.2") and times[-1].startswith("3.2")  # 0.25 and 3.25 s


def test_the_same_video_from_every_source(qwen, tmp_path):
    vlm = models.asked(qwen, budget=40)
    frames = film()
    folder = tmp_path / "frames"
    folder.mkdir()
    from PIL import Image

    for index, frame in enumerate(frames):
        Image.fromarray(frame).save(folder / f"{index}.png")
    np.save(tmp_path / "frames.npy", frames)
    wanted = vlm.ask(frames, QUESTION, fps=2, return_details=True, max_new_tokens=3)
    tensor = torch.from_numpy(frames).permute(0, 3, 1, 2)
    for source in (folder, tmp_path / "frames.npy", tensor, list(frames), iter(list(frames))):
        found = vlm.ask(source, QUESTION, fps=2, return_details=True, max_new_tokens=3)
        assert (found.text, found.logprobs) == (wanted.text, wanted.logprobs)


def test_a_file_is_a_video(qwen, tmp_path):
    pytest.importorskip("av")
    from texturevlm.video.picture import write_video

    path = tmp_path / "clip.mp4"
    with write_video(path, SIZE, 4) as write:
        for frame in film(16):
            write(frame)
    vlm = models.asked(qwen, budget=40)
    found = vlm.ask(str(path), QUESTION, return_details=True, max_new_tokens=3)
    assert len(found.placements) > 1 and sum(one.tokens for one in found.placements) <= 40
    session = vlm.prepare(path)
    assert isinstance(session, VideoSession) and session.fps == 2.0
    assert session.ask(QUESTION, max_new_tokens=3) == found.text
    conversation = [
        {"role": "user", "content": [{"type": "video", "video": str(path)}, {"type": "text", "text": QUESTION}]}
    ]
    assert vlm.ask(conversation, max_new_tokens=3) == found.text
    assert session.look(QUESTION).width > 100


def test_one_frame_equals_the_image_as_a_video(qwen):
    """The tokens of a still video are those of the image, each frame twice."""
    vlm = models.asked(qwen, budget=15)
    frames = film()[:1].repeat(4, 0)
    session = vlm.prepare(frames, fps=2)
    session.placements(QUESTION, vlm.config_for())
    (one,) = session.shown
    (image,) = vlm.prepare(frames[0]).choose(QUESTION, relevance="scout")
    assert torch.equal(one.allocation.boxes, image.given.boxes)
    view = moment_view(one.pixels, one.allocation, levels="joint", number=0, seconds=0.0, fps=2.0)
    assert torch.equal(view.pixels[:, 0], view.pixels[:, 1])


def test_a_rate_limits_the_tokens_per_second(qwen):
    vlm = models.asked(qwen, budget=200)
    frames = film(16)  # 8 seconds
    few = vlm.prepare(frames, fps=2, rate=4.0).placements(QUESTION, vlm.config_for())
    many = vlm.prepare(frames, fps=2).placements(QUESTION, vlm.config_for())
    count = [sum(one.tokens for one in shown) for shown in (few, many)]
    assert count[0] <= 32 < count[1]


def test_several_questions_about_one_video(qwen):
    vlm = models.asked(qwen, budget=40)
    frames = film()
    both = vlm.ask(frames, [QUESTION, "what is there ?"], fps=2, max_new_tokens=3)
    assert both[0] == vlm.ask(frames, QUESTION, fps=2, max_new_tokens=3) and len(both) == 2


@pytest.mark.parametrize(
    "source, fps, wanted",
    [
        ("clip.mp4", None, True),
        ("rtsp://camera/1", None, True),
        ("camera:0", None, True),
        ("https://host/picture.png", None, False),
        ("https://host/clip.mp4?key=1", None, True),
        ("ftp://host/picture.png", None, False),
        ("page.png", None, False),
        (np.zeros((4, 8, 8, 3), np.uint8), None, True),
        (np.zeros((8, 8, 3), np.uint8), None, False),
        (["a.png", "b.png"], None, False),
        (["a.png", "b.png"], 2.0, True),
        ([], None, False),
    ],
)
def test_what_is_a_video(source, fps, wanted):
    assert is_video(source, fps=fps) == wanted


@pytest.mark.parametrize(
    "options, match",
    [
        ({"fps": 0}, "ask: fps must be above 0, got 0"),
        ({"fps": 2, "seconds": -1}, "ask: seconds must be above 0, got -1"),
        ({"fps": 2, "rate": "fast"}, "ask: rate must be above 0, got 'fast'"),
        ({"fps": 2, "looks": 2}, "ask: looks must be 1 for a video, got 2"),
        (
            {"fps": 2, "relevance": "model"},
            "ask: relevance must be a scorer for a video, got 'model', which takes images",
        ),
    ],
)
def test_bad_options(qwen, options, match):
    with pytest.raises(ValueError, match=match):
        models.asked(qwen, budget=40).ask(film(), QUESTION, **options)


def test_bad_videos(qwen, tmp_path):
    vlm = models.asked(qwen, budget=40)
    with pytest.raises(FileNotFoundError, match=r"open_video: no such file: .*gone.mp4"):
        vlm.ask(tmp_path / "gone.mp4", QUESTION)
    with pytest.raises(ValueError, match="at least one frame, got none"):
        vlm.ask(iter([]), QUESTION)
    with pytest.raises(ValueError, match="fps, seconds and rate are for a video, got ndarray"):
        vlm.ask(film()[0], QUESTION, fps=2)
    block = {"type": "video", "video": "a.mp4"}
    both = [{"role": "user", "content": [block, {"type": "image", "image": "a.png"}]}]
    with pytest.raises(ValueError, match="messages must have images or one video, got 1 and 1"):
        vlm.ask(both)
    with pytest.raises(ValueError, match="given apart or inside the messages, got both"):
        vlm.ask(film(), [{"role": "user", "content": [block]}], fps=2)


def test_messages_keep_the_place_of_their_video():
    content = [
        {"type": "text", "text": "before"},
        {"type": "video", "video": "a.mp4"},
        {"type": "text", "text": "after"},
    ]
    found = messages.conversation_with([{"role": "user", "content": content}], 2, [], apart=False, block=messages.IMAGE)
    assert [part["type"] for part in found[0]["content"]] == ["text", "image", "image", "text"]


def test_a_processor_puts_the_same_tokens_into_a_prompt(qwen, monkeypatch):
    """What `attach` gives takes videos as every model card passes them."""
    vlm = models.asked(qwen, budget=40)
    _, (wanted,) = prompts_of(vlm, monkeypatch, film(), QUESTION, fps=2)
    content = [{"type": "video", "video": film()}, {"type": "text", "text": QUESTION}]
    inputs = models.inputs_of(vlm.processor, [{"role": "user", "content": content}], processor_kwargs={"fps": 2})
    for name in ("input_ids", "pixel_values_videos", "video_grid_thw", "mm_token_type_ids"):
        assert torch.equal(inputs[name], wanted[name]), name
    logits = [qwen.model(**given).logits[:, -1] for given in (inputs, {name: wanted[name] for name in inputs})]
    assert torch.equal(*logits)


def test_prompts_with_videos_of_their_own(qwen):
    vlm = models.asked(qwen, budget=40)
    mark = "<|vision_start|><|video_pad|><|vision_end|>"
    texts, videos = [f"{mark} what ?", f"{mark} {mark} is ?"], [[film()], [film(4), list(film(6))]]
    inputs = vlm.processor(text=texts, videos=videos, question=["", ""], return_tensors="pt", padding=True)
    counts = (inputs["input_ids"] == small.VIDEO).sum(1).tolist()
    assert len(inputs["pixel_values_videos"]) == 4 * sum(counts) and max(counts) <= 40
    with pytest.raises(ValueError, match=r"one placeholder per video, got \[1\] placeholders for 2 videos"):
        vlm.processor(text=texts[:1], videos=[film(), film()], question="")
    vlm.processor.relevance = "model"
    with pytest.raises(ValueError, match="processor: relevance must be a scorer for a video, got 'model'"):
        vlm.processor(text=texts[:1], videos=[film()], question="")

import pytest

from tests.test_cli import assert_one_line, status
from tests.video.test_sources import folder_of, pictures
from texturevlm.video import open_video


def test_a_folder_becomes_a_film_and_a_table(tmp_path, capsys):
    pytest.importorskip("av")
    folder = folder_of(tmp_path / "clip", pictures(6))
    (folder / "frame3.png").write_bytes(b"broken")
    out = tmp_path / "deep" / "out.mp4"
    options = ["--budget", 12, "--patch", 16, "--relevance", "none", "--limit", 5]
    assert status("video", folder, *options, "--out", out) == 0
    told = capsys.readouterr()
    assert "5, " in told.out and "1 first" in told.out and "tokens chosen again" in told.out
    frames = list(open_video(out))
    assert len(frames) == 5 and frames[0].image.float().std() > 10
    assert "frames" in told.err  # progress


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--out", "film.gif"], "--out must end in .mp4"),
        (["--out", "film.mp4", "--limit", "0"], "--limit: must be a whole number from 1"),
        (["--out", "film.mp4", "--fps", "-2"], "--fps must be above 0"),
        (["--out", "film.mp4", "--allocator", "best"], "allocator must be one of"),
    ],
)
def test_mistakes_are_named_before_the_work(tmp_path, capsys, arguments, message):
    folder = folder_of(tmp_path / "clip", pictures(2))
    arguments = [str(tmp_path / one) if one.startswith("film") else one for one in arguments]
    assert status("video", folder, *arguments) == 2
    assert_one_line(capsys, [message])
    assert not (tmp_path / "film.mp4").exists()


def test_a_model_writes_captions(tmp_path, capsys, monkeypatch):
    """The answer is in the picture, and is asked for as often as --every says."""
    pytest.importorskip("av")
    from tests.ask import models
    from texturevlm import ask, vlm
    from texturevlm.video.live import VideoStream

    small = models.asked(vlm.adapt(*models.built("qwen3_vl")), budget=12)
    monkeypatch.setattr(ask, "load_vlm", lambda *_, **__: small)
    asked = []
    monkeypatch.setattr(VideoStream, "ask", lambda self, question: asked.append(question) or "W" * 200)
    folder, films = folder_of(tmp_path / "clip", pictures(6)), []
    for name, more in (("plain", []), ("asked", ["--model", "any", "--every", "0.2"])):
        options = ["--budget", 12, "--relevance", "none", "--fps", 10, "--query", "what is there ?"]
        assert status("video", folder, *options, *more, "--out", tmp_path / f"{name}.mp4") == 0
        films.append([frame.image.float() for frame in open_video(tmp_path / f"{name}.mp4")])
    assert asked == ["what is there ?"] * 3
    difference = (films[0][-1] - films[1][-1]).abs().mean(0)
    wide = difference.shape[1]
    assert difference[:, wide // 2 :].max() > 100 > difference[:200, : wide // 3].max()
    said = capsys.readouterr().out
    assert said.count("answer from") == 1 and f"answer from 0.0 s      {'W' * 200}" in said  # it did not change
    assert status("video", folder, "--model", "any", "--out", tmp_path / "none.mp4") == 2
    assert "--query must be a question for the model" in capsys.readouterr().err


def test_an_error_of_the_drawing_is_raised():
    from texturevlm.video.picture import background

    def fail(number):
        if number == 1:
            raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"), background(fail) as draw:
        for number in range(50):
            draw(number)
    done = []
    with background(done.append) as work:
        for number in range(9):
            work(number)
    assert done == list(range(9))

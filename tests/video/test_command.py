import argparse

import pytest

from tests.video.test_sources import folder_of, pictures
from texturevlm.commands.video import add_video
from texturevlm.video.sources import open_video


def run(*arguments):
    parser = argparse.ArgumentParser()
    add_video(parser.add_subparsers(dest="command", required=True))
    options = parser.parse_args(["video", *map(str, arguments)])
    return options.run(options)


def test_a_folder_becomes_a_film_and_a_table(tmp_path, capsys):
    pytest.importorskip("av")
    folder = folder_of(tmp_path / "clip", pictures(6))
    (folder / "frame3.png").write_bytes(b"broken")
    out = tmp_path / "deep" / "out.mp4"
    assert run(folder, "--budget", 12, "--patch", 16, "--relevance", "none", "--out", out, "--limit", 5) == 0
    told = capsys.readouterr()
    assert "5, " in told.out and "1 first" in told.out and "tokens chosen again" in told.out
    frames = list(open_video(out))
    assert len(frames) == 5 and frames[0].image.float().std() > 10
    assert "frames" in told.err  # progress


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--out", "film.gif"], "--out must end in .mp4"),
        (["--out", "film.mp4", "--fps", "-2"], "--fps must be above 0"),
        (["--out", "film.mp4", "--allocator", "best"], "allocator must be one of"),
    ],
)
def test_mistakes_are_named_before_the_work(tmp_path, arguments, message):
    folder = folder_of(tmp_path / "clip", pictures(2))
    arguments = [str(tmp_path / one) if one.startswith("film") else one for one in arguments]
    with pytest.raises(ValueError, match=message):
        run(folder, *arguments)


def test_a_limit_of_nothing_is_refused(tmp_path, capsys):
    folder = folder_of(tmp_path / "clip", pictures(2))
    with pytest.raises(SystemExit, match="2"):
        run(folder, "--out", tmp_path / "film.mp4", "--limit", "0")
    assert "--limit: must be a whole number from 1, got '0'" in capsys.readouterr().err

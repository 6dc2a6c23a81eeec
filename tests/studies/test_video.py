"""The measurements themselves, on made-up clips where the answer is known."""

from tests.video.moving import scene, with_box
from tests.video.test_sources import folder_of
from texturevlm_lab.studies import video_measures as study

SIZE = (96, 160)


def clip(tmp_path, frames):
    return folder_of(tmp_path / "clip", [(frame[0] * 255).byte() for frame in frames])


def test_drift_is_nothing_where_nothing_moves_and_keyframes_bound_it(tmp_path):
    ground = scene((96, 260), stripes=False)
    path = clip(tmp_path, [ground[..., 4 * index : 4 * index + 160] for index in range(16)] + [ground[..., 60:220]] * 4)
    followed = list(study.held_frames(path, None))
    for method in ("lucas_kanade", "none"):
        freely = study.drift(followed, method, interval=None, again=False)
        bounded = study.drift(followed, method, interval=4, again=False)
        assert len(freely) == 19 and min(bounded) > min(freely)
        assert study.at_ages(freely) == {"1": freely[0], "10": freely[9]}
        assert freely[-1] > freely[-2] - 1e-3  # it stands still by then
    assert min(study.drift(followed, "lucas_kanade", interval=None, again=True)) >= min(
        study.drift(followed, "lucas_kanade", interval=None, again=False)
    )


def test_a_still_clip_is_still():
    ground = scene(SIZE)
    found = study.still([ground] * 5, 16)
    assert found["changed"] == 0 and found["still_frames"] == 1 and found["sampled"] == 0 and found["cuts"] == 0


def test_a_wandering_piece_is_as_large_as_it_says(tmp_path):
    path = clip(tmp_path, [scene(SIZE)] * 61)
    frames = list(study.still_camera(path, 0.05, 4))
    moved = (frames[0] - frames[2]).abs().amax(1) > 0.05
    assert 0.03 < moved.float().mean() < 0.12


def test_a_face_is_followed(tmp_path):
    ground = scene(SIZE, stripes=False) * 0.3 + 0.3
    frames = [with_box(ground, 10 + 3 * index, 30, side=32) for index in range(26)]
    boxes = [(10.0 + 3 * index, 30.0, 42.0 + 3 * index, 62.0) for index in range(26)]
    scores = study.face_coverage(clip(tmp_path, frames), boxes, 0, 12, 16, 5)
    ours, left = scores["incremental: carried from the first box"], scores["full, the first box left where it was"]
    assert sum(ours[3:]) > sum(left[3:]) + 0.3
    assert sum(scores["full, told the true box"]) > sum(left)

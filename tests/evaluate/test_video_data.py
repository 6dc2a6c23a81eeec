import json

import pytest

from texturevlm_lab.evaluate.video_data import MVBENCH_TASKS, load_video_questions


def nextqa(folder, rows, mapped=None):
    (folder / "nextqa").mkdir(parents=True)
    head = "video,frame_count,width,height,question,answer,qid,type,a0,a1,a2,a3,a4"
    (folder / "nextqa" / "val.csv").write_text("\n".join([head, *rows]) + "\n")
    if mapped is not None:
        (folder / "nextqa" / "map_vid_vidorID.json").write_text(json.dumps(mapped))
    for name in (mapped or {"7": "7"}).values():
        path = folder / "NExTVideo" / f"{name}.mp4"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")


def test_nextqa_as_shipped(tmp_path):
    rows = ['7,100,640,360,"why, then?",3,2,CW,a,b,c,d,e', "7,100,640,360,how,c,5,CH,a,b,c,d,e"]
    nextqa(tmp_path, rows, {"7": "1164/7"})
    found, skipped = load_video_questions(tmp_path)
    assert [one.id for one in found] == ["7_2", "7_5"] and not skipped
    assert found[0].question == "why, then?" and found[0].answer == 3 and found[0].task == "CW"
    assert found[1].answer == 2  # NExT-GQA gives the text
    assert found[0].video == tmp_path / "NExTVideo" / "1164" / "7.mp4"


def test_mvbench_as_shipped(tmp_path):
    (tmp_path / "json").mkdir()
    rows = [
        {"video": "x.mp4", "question": "what?", "candidates": ["a", "b"], "answer": "b", "start": 1.0, "end": 4.5},
        {"video": "y.mp4", "question": "which?", "candidates": ["a", "b"], "answer": "a"},
    ]
    (tmp_path / "json" / "action_sequence.json").write_text(json.dumps(rows))
    folder = tmp_path / "video" / MVBENCH_TASKS["action_sequence"]
    folder.mkdir(parents=True)
    for name in ("x.mp4", "y.mp4"):
        (folder / name).write_bytes(b"")
    found, _ = load_video_questions(tmp_path)
    assert [one.answer for one in found] == [1, 0] and found[0].span == (1.0, 4.5) and found[1].span is None
    assert found[0].task == "action_sequence" and found[0].candidates == ("a", "b")
    assert len(load_video_questions(tmp_path, limit=1)[0]) == 1


def test_what_is_wrong_is_told_with_its_place(tmp_path):
    nextqa(tmp_path, ["7,1,1,1,why,9,1,CW,a,b,c,d,e", "8,1,1,1,why,1,2,CW,a,b,c,d,e", "7,1,1,1,how,0,3,CW,a,b,c,d,e"])
    with pytest.raises(ValueError, match=r"val\.csv:2: answer must be 0 to 4"):
        load_video_questions(tmp_path)
    found, skipped = load_video_questions(tmp_path, skip_broken=True)
    assert len(found) == 1 and "val.csv:3: no such video" in skipped[1]


def test_other_folders_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"NExT-QA must hold val\.csv"):
        load_video_questions(tmp_path)
    with pytest.raises(FileNotFoundError, match="not a folder"):
        load_video_questions(tmp_path / "no")
    (tmp_path / "json").mkdir()
    with pytest.raises(FileNotFoundError, match=r"MVBench must hold json/TASK\.json"):
        load_video_questions(tmp_path)
    (tmp_path / "json" / "task.json").write_text('[{"video": "x"}]')
    with pytest.raises(ValueError, match=r"task\.json\[0\]: must have video, question"):
        load_video_questions(tmp_path)

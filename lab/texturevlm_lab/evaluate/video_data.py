"""Questions about videos, from a folder as a public data set's authors ship it: NExT-QA, MVBench or Video-MME.

NExT-QA:  train.csv, val.csv or test.csv (in the folder or in `nextqa`), map_vid_vidorID.json beside it, and the videos
          under NExTVideo or videos, at the path that the map gives.
MVBench:  json/TASK.json, and the videos under video, in the folder that belongs to the task.
VideoMME: videomme/*.parquet (needs pyarrow) or videomme.json with the same fields, and the videos under data.
Each question has candidates, of which one is right. What is wrong with an entry is told with its file and place.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from texturevlm.check import check_choice, check_count

VIDEO_SETS = ("nextqa", "mvbench", "videomme")
MAP = "map_vid_vidorID.json"
VIDEO_FOLDERS = ("NExTVideo", "videos", "video", "data", ".")
SUFFIXES = (".mp4", ".webm", ".avi", ".mkv", "")
CANDIDATES = tuple(f"a{number}" for number in range(5))
# Where MVBench keeps the videos of each of its tasks, under `video`.
PERCEPTION, CLEVRER, STAR = "perception/videos", "clevrer/video_validation", "star/Charades_v1_480"
MVBENCH_TASKS = {
    "action_sequence": STAR,
    "action_prediction": STAR,
    "action_antonym": "ssv2_video",
    "fine_grained_action": "Moments_in_Time_Raw/videos",
    "unexpected_action": "FunQA_test/test",
    "object_existence": CLEVRER,
    "object_interaction": STAR,
    "object_shuffle": PERCEPTION,
    "moving_direction": CLEVRER,
    "action_localization": "sta/sta_video",
    "scene_transition": "scene_qa/video",
    "action_count": PERCEPTION,
    "moving_count": CLEVRER,
    "moving_attribute": CLEVRER,
    "state_change": PERCEPTION,
    "fine_grained_pose": "nturgbd",
    "character_order": PERCEPTION,
    "egocentric_navigation": "vlnqa",
    "episodic_reasoning": "tvqa/frames_fps3_hq",  # folders of images, three per second
    "counterfactual_inference": CLEVRER,
}


@dataclass(frozen=True)
class VideoQuestion:
    """One question about one video.

    id:         as the data set names it, with its task
    video:      the file, or a folder of images
    candidates: texts; `answer` is the index of the right one
    span:       (start, end) in seconds that the question is about; None: the whole video
    task:       MVBench's task, NExT-QA's type of question
    """

    id: str
    video: Path
    question: str
    candidates: tuple[str, ...]
    answer: int
    span: tuple[float, float] | None = None
    task: str = ""


Reader = Callable[[Path], Iterator[tuple[str, VideoQuestion | str]]]  # place, and a question or what is wrong


def load_video_questions(
    folder: Path | str,
    *,
    format: str = "auto",
    split: str = "val",
    limit: int | None = None,
    skip_broken: bool = False,
) -> tuple[list[VideoQuestion], list[str]]:
    """The questions of a folder, in its order, and what was wrong with those that were skipped.

    format:      nextqa, mvbench, videomme, or auto: by what is in the folder
    split:       train, val or test, of NExT-QA
    limit:       at most that many, evenly spread
    skip_broken: go on without entries that are broken or whose video is missing
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"load_video_questions: folder must be a data set, got {folder}, which is not a folder")
    check_choice("load_video_questions", "format", format, ("auto", *VIDEO_SETS))
    if format == "auto":
        format = "mvbench" if (folder / "json").is_dir() else "videomme" if _videomme_files(folder) else "nextqa"
    readers: dict[str, Callable[[Path], Iterator[tuple[str, VideoQuestion | str]]]] = {
        "mvbench": _mvbench,
        "videomme": _videomme,
        "nextqa": partial(_nextqa, split=split),
    }
    entries = readers[format](folder)
    found: list[VideoQuestion] = []
    skipped: list[str] = []
    for place, entry in entries:
        if isinstance(entry, VideoQuestion) and entry.video.exists():
            found.append(entry)
            continue
        wrong = f"no such video: {entry.video}" if isinstance(entry, VideoQuestion) else entry
        if not skip_broken:
            raise ValueError(f"load_video_questions: {place}: {wrong} (skip_broken goes on without it)")
        skipped.append(f"{place}: {wrong}")
    if limit is not None and check_count("load_video_questions", "limit", limit, 1) < len(found):
        found = [found[index * len(found) // limit] for index in range(limit)]
    if not found:
        raise ValueError(
            f"load_video_questions: {folder} ({format}) must hold questions, got none ({len(skipped)} broken)"
        )
    return found, skipped


def _nextqa(folder: Path, split: str) -> Iterator[tuple[str, VideoQuestion | str]]:
    check_choice("load_video_questions", "split", split, ("train", "val", "test"))
    where = next((one for one in (folder, folder / "nextqa") if (one / f"{split}.csv").is_file()), None)
    if where is None:
        raise FileNotFoundError(f"load_video_questions: NExT-QA must hold {split}.csv, got {folder}")
    listing = where / f"{split}.csv"
    mapped = _parsed(where / MAP) if (where / MAP).is_file() else {}
    with listing.open(newline="", encoding="utf-8") as file:
        rows = csv.DictReader(file)
        missing = {"video", "question", "answer", *CANDIDATES} - set(rows.fieldnames or ())
        if missing:
            raise ValueError(f"load_video_questions: {listing} must have columns {', '.join(sorted(missing))}")
        for number, row in enumerate(rows, 2):
            candidates = tuple(row[name] or "" for name in CANDIDATES)
            answer = _answer(row["answer"], candidates)
            name = str(mapped.get(row["video"], row["video"]))
            question = VideoQuestion(
                id=f"{row['video']}_{row.get('qid', number)}",
                video=_video(folder, name),
                question=row["question"] or "",
                candidates=candidates,
                answer=answer if answer is not None else 0,
                task=row.get("type") or "",
            )
            broken = f"answer must be 0 to 4 or a candidate, got {row['answer']!r}"
            yield f"{listing}:{number}", question if answer is not None else broken


def _answer(given: str | None, candidates: tuple[str, ...]) -> int | None:
    """An index, or the text of the right one (NExT-GQA)."""
    if given is not None and given.strip().isdigit() and int(given) < len(candidates):
        return int(given)
    return candidates.index(given) if given in candidates else None


def _video(folder: Path, name: str) -> Path:
    """The file of that name; where it would be, if there is none."""
    for base in VIDEO_FOLDERS:
        for suffix in SUFFIXES:
            if (path := folder / base / f"{name}{suffix}").exists():
                return path
    return folder / VIDEO_FOLDERS[0] / f"{name}.mp4"


def _mvbench(folder: Path) -> Iterator[tuple[str, VideoQuestion | str]]:
    listings = sorted((folder / "json").glob("*.json"))
    if not listings:
        raise FileNotFoundError(f"load_video_questions: MVBench must hold json/TASK.json, got {folder}")
    for listing in listings:
        task = listing.stem
        base = folder / "video" / MVBENCH_TASKS.get(task, task)
        entries = _parsed(listing)
        if not isinstance(entries, list):
            raise ValueError(f"load_video_questions: {listing} must hold a list, got {type(entries).__name__}")
        for number, row in enumerate(entries):
            yield f"{listing}[{number}]", _mvbench_entry(row, base, f"{task}_{number}", task)


def _mvbench_entry(row: Any, base: Path, name: str, task: str) -> VideoQuestion | str:
    if not isinstance(row, dict) or not {"video", "question", "candidates", "answer"} <= set(row):
        return f"must have video, question, candidates and answer, got {row!r:.60}"
    if not isinstance(row["candidates"], list) or row["answer"] not in row["candidates"]:
        return f"answer must be one of the candidates, got {row['answer']!r:.60}"
    span = (float(row["start"]), float(row["end"])) if "start" in row and "end" in row else None
    candidates = tuple(str(one) for one in row["candidates"])
    answer = row["candidates"].index(row["answer"])
    return VideoQuestion(name, base / str(row["video"]), str(row["question"]), candidates, answer, span, task)


def _videomme_files(folder: Path) -> list[Path]:
    return [*sorted((folder / "videomme").glob("*.parquet")), *sorted(folder.glob("videomme*.json"))][:1]


def _videomme(folder: Path) -> Iterator[tuple[str, VideoQuestion | str]]:
    listings = _videomme_files(folder)
    if not listings:
        raise FileNotFoundError(f"load_video_questions: Video-MME must hold videomme/*.parquet, got {folder}")
    rows = _parsed(listings[0]) if listings[0].suffix == ".json" else _table(listings[0])
    for number, row in enumerate(rows):
        yield f"{listings[0]}[{number}]", _videomme_entry(row, folder)


def _videomme_entry(row: Any, folder: Path) -> VideoQuestion | str:
    if not isinstance(row, dict) or not {"videoID", "question_id", "question", "options", "answer"} <= set(row):
        return f"must have videoID, question_id, question, options and answer, got {row!r:.60}"
    candidates = tuple(re.sub(r"^[A-Z]\. ", "", str(one)) for one in row["options"])
    answer = "ABCDEFGH".find(str(row["answer"]))
    if not 0 <= answer < len(candidates) or len(str(row["answer"])) != 1:
        return f"answer must be the letter of an option, got {row['answer']!r:.60}"
    task = str(row.get("task_type") or "")
    video = _video(folder, str(row["videoID"]))
    return VideoQuestion(str(row["question_id"]), video, str(row["question"]), candidates, answer, None, task)


def _table(path: Path) -> list[Any]:
    try:
        from pyarrow import parquet
    except ImportError:
        raise ImportError(f"load_video_questions: {path} needs pyarrow: pip install pyarrow") from None
    rows: list[Any] = parquet.read_table(path).to_pylist()
    return rows


def _parsed(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"load_video_questions: {path} must be JSON: {error}") from None

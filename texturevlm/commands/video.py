"""texturevlm video: run a stream over a video, a folder of images or a camera, and draw its tokens and its cost."""

import argparse
import math
import time
from collections import Counter
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from texturevlm.commands import arguments

if TYPE_CHECKING:
    from texturevlm.video import FrameSource, Reuse, Step
    from texturevlm.video.live import VideoStream


# Options whose defaults, where they are not given, are those of `StreamConfig`.
STREAM_OPTIONS = ("budget", "allocator", "query", "relevance", "patch", "keyframe", "flow", "rate", "device")


def add_video(commands: arguments.Commands) -> None:
    help = "draw what a model would see of a video, and what each frame costs"
    parser = arguments.add_command(commands, "video", _video, help)
    given = "a video, a folder of images, a camera (camera:0) or a network stream (rtsp://…)"
    parser.add_argument("file", type=arguments.video_or_images, metavar="FILE", help=given)
    parser.add_argument("--query", default="", metavar="Q", help="a question, asked at every keyframe")
    parser.add_tokens("budget", "patch", "allocator", "relevance", budget="tokens per frame")
    parser.add_out("OUT.mp4")
    parser.add_option("--rate", "R", "at most R tokens per second (default: no limit)", type=float)
    parser.add_count("--keyframe", "frames between keyframes (default: 30)")
    parser.add_option("--flow", "NAME", "lucas_kanade (default) or none")
    parser.add_option("--fps", None, "of a folder of images", 25.0, type=float)
    parser.add_count("--limit", "the first N frames (default: all)")
    parser.add_option("--seconds", "N", "the first N seconds (default: all; 10 of a camera)", type=float)
    models = "a model that answers the question as the video goes on, as a caption: a hub id, a folder, or reader"
    parser.add_option("--model", "PATH_OR_ID", models)
    parser.add_option("--every", "S", "seconds of the video between two answers", 1.0, type=float)
    parser.add_device()


def _video(options: argparse.Namespace) -> int:
    from texturevlm.video import open_video

    if options.out.suffix.lower() != ".mp4":
        raise ValueError(f"--out must end in .mp4, got {options.out}")
    how = arguments.tokens_of(options)
    options.device = arguments.device_of(options)
    if not 0 < options.fps < math.inf:
        raise ValueError(f"--fps must be above 0, got {options.fps}")
    if options.model is not None and not options.query.strip():
        raise ValueError("--query must be a question for the model, got none")
    if not 0 <= options.every < math.inf:
        raise ValueError(f"--every must be at least 0, got {options.every}")
    source = open_video(options.file, source_fps=options.fps, seconds=options.seconds)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    answers = _Answers(options)
    costs, lasted, spent, failed = _drawn(source, options, answers)
    print(f"{options.out}: {options.file}, {how.budget} tokens per frame")
    for name, value in _summary(costs, lasted).items():
        print(f"  {name:<22} {value}")
    print(f"  {'time':<22} {1000 * spent / len(costs):.0f} ms per frame on {options.device}, drawing not counted")
    for seconds, answer in answers.changes:
        print(f"  {f'answer from {seconds:.1f} s':<22} {answer}")
    for note in (*source.notes, *failed[:5]):
        print(f"  note: {note}")
    return 0


def _drawn(
    source: "FrameSource", options: argparse.Namespace, answers: "_Answers"
) -> "tuple[list[Reuse], float, float, list[str]]":
    """Run and draw every frame; a frame that fails is named and left out.

    returns the cost of each frame, the duration of the video and of the work in seconds, and the failures
    """
    from texturevlm.progress import Progress
    from texturevlm.video.picture import StreamPicture, background, write_video

    frames = islice(source, options.limit)
    if (first := next(frames, None)) is None:
        raise ValueError(f"no frame of {options.file} could be used")
    size = (first.image.shape[1], first.image.shape[2])
    stream, picture = _stream(size, source.fps, options), StreamPicture(size)
    counts = [count for count in (source.count, options.limit) if count]
    progress = Progress(min(counts), "frames") if counts else None
    costs: list[Reuse] = []
    failed: list[str] = []
    spent = lasted = 0.0
    with write_video(options.out, picture.size, source.fps) as write:

        def show(step: "Step", image: Any, caption: str) -> None:
            write(picture.draw(step, image, caption))

        with background(show) as draw:  # drawing and encoding take longer than the stream
            for index, frame in enumerate(chain([first], frames)):
                started = time.perf_counter()
                try:
                    step = stream.step(frame.image, time=frame.time)
                    caption = answers.at(step.time, stream)
                except (ValueError, RuntimeError) as error:
                    failed.append(f"frame {index}: {error}")
                    continue
                spent += time.perf_counter() - started
                draw(step.held(), frame.image, caption)
                costs.append(step.reuse)
                lasted = step.time
                if progress is not None and progress.done < progress.total:
                    progress.step()
    if not costs:
        raise ValueError(f"no frame of {options.file} could be used: {failed[0]}")
    return costs, lasted + 1 / source.fps, spent, failed


def _stream(size: tuple[int, int], fps: float, options: argparse.Namespace) -> "VideoStream":
    """The stream, with the model if there is one."""
    from texturevlm.ask import load_vlm
    from texturevlm.video.live import VideoStream

    given = {name: value for name in STREAM_OPTIONS if (value := getattr(options, name)) is not None}
    if options.model is not None:
        with arguments.announced(f"loading {options.model}"):
            model = load_vlm(
                options.model, budget=arguments.tokens_of(options).budget, device=options.device, captured=False
            )
        given |= {"model": model, "patch": model.adapter.side}
    return VideoStream(size, fps=fps, **given)


class _Answers:
    """The caption of each frame: the question, and the last answer to it. changes: answers, and when they came"""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.due, self.caption = options, -math.inf, ""
        self.changes: list[tuple[float, str]] = []

    def at(self, seconds: float, stream: "VideoStream") -> str:
        if self.options.model is not None and seconds >= self.due:
            self.due = seconds + self.options.every
            answer = stream.ask(self.options.query)
            if not self.changes or self.changes[-1][1] != answer:
                self.changes.append((seconds, answer))
            self.caption = f"{self.options.query} {answer}"
        return self.caption


def _summary(costs: "list[Reuse]", seconds: float) -> dict[str, str]:
    tokens, fresh = sum(cost.tokens for cost in costs), sum(cost.fresh for cost in costs)
    keyframes = Counter(cost.keyframe for cost in costs if cost.keyframe)
    share = 100 * fresh / max(1, tokens)
    return {
        "frames": f"{len(costs)}, {sum(cost.changed == 0 for cost in costs)} of them without any change",
        "tiles changed": f"{100 * sum(cost.share for cost in costs) / len(costs):.1f}% per frame",
        "tokens": f"{tokens} shown, {fresh} sampled ({share:.1f}%), {fresh / seconds:.0f} per second",
        "keyframes": ", ".join(f"{count} {why}" for why, count in sorted(keyframes.items())),
        "tokens chosen again": f"{sum(cost.chosen for cost in costs)} times",
    }

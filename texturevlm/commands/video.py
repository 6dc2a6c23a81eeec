"""texturevlm video: run a stream over a video or a folder of images, and draw its tokens and its cost."""

import argparse
import math
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from texturevlm.commands.options import Commands, add_device, add_tokens, count, device_of, existing_path, names_of

if TYPE_CHECKING:
    from texturevlm.video.sources import FrameSource
    from texturevlm.video.step import Reuse


def add_video(commands: Commands) -> None:
    parser = commands.add_parser("video", help="draw what a model would see of a video, and what each frame costs")
    parser.add_argument("file", type=existing_path, metavar="FILE", help="a video, or a folder of images")
    parser.add_argument("--query", default="", metavar="Q", help="a question, asked at every keyframe")
    add_tokens(parser, budget="tokens per frame")
    parser.add_argument("--out", type=Path, required=True, metavar="OUT.mp4")
    parser.add_argument("--rate", type=float, metavar="R", help="at most R tokens per second (default: no limit)")
    parser.add_argument(
        "--keyframe", type=count, default=30, metavar="N", help="frames between keyframes (default: 30)"
    )
    parser.add_argument("--flow", default="lucas_kanade", metavar="NAME", help="lucas_kanade, dis or none")
    parser.add_argument("--fps", type=float, default=25.0, help="of a folder of images (default: 25)")
    parser.add_argument("--limit", type=count, metavar="N", help="the first N frames (default: all)")
    add_device(parser)
    parser.set_defaults(run=_video)


def _video(options: argparse.Namespace) -> int:
    from texturevlm.video.sources import open_video

    if options.out.suffix.lower() != ".mp4":
        raise ValueError(f"--out must end in .mp4, got {options.out}")
    options.allocator, options.relevance = names_of(options)
    options.device = device_of(options)
    if not 0 < options.fps < math.inf:
        raise ValueError(f"--fps must be above 0, got {options.fps}")
    source = open_video(options.file, fps=options.fps)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    print(_summary(options, source, *_drawn(source, options)))
    return 0


def _drawn(source: "FrameSource", options: argparse.Namespace) -> "tuple[list[Reuse], tuple[float, float], list[str]]":
    """Run and draw every frame; a frame that fails is named and left out.

    returns the cost of each frame, the duration of the video and of the work in seconds, and the failures
    """
    from texturevlm.progress import Progress
    from texturevlm.video.picture import StreamPicture, write_video

    total = min(count for count in (source.count, options.limit, 10**9) if count)
    progress = Progress(total, "frames") if total < 10**9 else None
    costs: list[Reuse] = []
    failed: list[str] = []
    spent = lasted = 0.0
    stream = picture = write = None
    with ExitStack() as files:
        for index, frame in enumerate(source):
            if options.limit is not None and index >= options.limit:
                break
            if stream is None or picture is None or write is None:
                size = (frame.image.shape[1], frame.image.shape[2])
                stream, picture = _stream(size, source, options), StreamPicture(size)
                write = files.enter_context(write_video(options.out, picture.size, source.fps))
            started = time.perf_counter()
            try:
                step = stream.step(frame.image, time=frame.time)
            except (ValueError, RuntimeError) as error:
                failed.append(f"frame {index}: {error}")
                continue
            spent += time.perf_counter() - started
            write(picture.draw(step, frame.image))
            costs.append(step.reuse)
            lasted = step.time
            if progress is not None and progress.done < progress.total:
                progress.step()
    if not costs:
        raise ValueError(f"no frame of {options.file} could be used" + (f": {failed[0]}" if failed else ""))
    return costs, (lasted + 1 / source.fps, spent), failed


def _stream(size: tuple[int, int], source: "FrameSource", options: argparse.Namespace) -> Any:
    from texturevlm.video import VideoStream

    return VideoStream(
        size,
        options.budget,
        options.allocator,
        query=options.query,
        relevance=options.relevance,
        patch=options.patch,
        keyframe=options.keyframe,
        flow=options.flow,
        rate=options.rate,
        fps=source.fps,
        device=options.device,
    )


def _summary(
    options: argparse.Namespace,
    source: "FrameSource",
    costs: "list[Reuse]",
    seconds: tuple[float, float],
    failed: list[str],
) -> str:
    tokens, fresh = sum(one.tokens for one in costs), sum(one.fresh for one in costs)
    reasons = sorted({one.keyframe for one in costs if one.keyframe})
    keyframes = {why: sum(one.keyframe == why for one in costs) for why in reasons}
    lasted, spent = seconds
    share = 100 * fresh / max(1, tokens)
    rows = {
        "frames": f"{len(costs)}, {sum(one.changed == 0 for one in costs)} of them without any change",
        "tiles changed": f"{100 * sum(one.share for one in costs) / len(costs):.1f}% per frame",
        "tokens": f"{tokens} shown, {fresh} sampled ({share:.1f}%), {fresh / lasted:.0f} per second",
        "keyframes": ", ".join(f"{count} {why}" for why, count in keyframes.items()),
        "tokens chosen again": f"{sum(one.chosen for one in costs)} times",
        "time": f"{1000 * spent / len(costs):.0f} ms per frame on {options.device}, drawing not counted",
    }
    lines = [f"{options.out}: {options.file}, {options.budget} tokens per frame"]
    lines += [f"  {name:<22} {value}" for name, value in rows.items()]
    lines += [f"  note: {note}" for note in (*source.notes, *failed[:5])]
    return "\n".join(lines)

"""texturevlm doctor: say what runs on this machine, and why not something faster; useful in bug reports."""

import argparse
import importlib.metadata
import platform
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

from texturevlm.commands import arguments

if TYPE_CHECKING:
    from texturevlm.ask import VLM
    from texturevlm.ask.config import AskConfig
    from texturevlm.video.live import VideoStream

PACKAGES = ("torch", "numpy", "pillow", "cuda-bindings", "nvidia-cuda-nvrtc", "triton")
ON_A_GPU = """
float32, float16 and bfloat16 tensors on the GPU run our kernels; anything else runs the reference.
A texture made resident by Texture.on_device() is sampled by the texture units."""


def add_doctor(commands: arguments.Commands) -> None:
    help = "versions, GPUs, and which backend runs each operation and why"
    parser = arguments.add_command(commands, "doctor", _doctor, help)
    said = "what every function and command takes for budget, allocator and the like where nothing is given"
    parser.add_argument("--defaults", action="store_true", help=said)


def _doctor(options: argparse.Namespace) -> int:
    import texturevlm
    from texturevlm.ops import backend

    if options.defaults:
        _print_defaults()
        return 0
    system = f"Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    print(f"texturevlm {texturevlm.__version__}, {system}")
    for package in PACKAGES:
        print(f"  {package:18} {_version(package)}")
    print("", "GPU", *_gpus(), "", "operation           backend by default on this machine", sep="\n")
    reason = backend.no_cuda_because()
    for operation, known in backend.BACKENDS.items():
        print(f"  {operation:18}{'reference' if reason else 'cuda':10} (known: {', '.join(known)})")
    print(f"\nwhy not cuda: {reason}" if reason else f"{ON_A_GPU}\n{_kernel_check()}")
    return 0


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _gpus() -> list[str]:
    import torch

    if not torch.cuda.is_available():
        return ["  none that PyTorch can use"]
    found = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
    return [f"  {i}: {g.name}, {g.total_memory / 2**30:.0f} GiB, sm_{g.major}{g.minor}" for i, g in enumerate(found)]


def _kernel_check() -> str:
    """Run one kernel, to find installations that are complete but broken."""
    import torch

    from texturevlm.ops import mipmap

    try:
        ones = mipmap(torch.ones(1, 1, 64, 64, device="cuda"), backend="cuda")[-1].item()
    except RuntimeError as error:
        return f"kernel check: FAILED: {error}"
    return f"kernel check: {'passed' if ones == 1.0 else 'FAILED: wrong result'}"


def _print_defaults() -> None:
    """A line per door: what it takes where a caller gives nothing."""
    from texturevlm.relevance import Balance, find_balance

    options = ("budget", "allocator", "relevance", "balance", "turn", "finer", "patch", "looks")
    print(f"{'door':30}", *(f"{name:9}" for name in options))
    for door, how in doors():
        if isinstance(how, str):
            print(f"{door:30} {how}")
            continue
        tokens, balance = how.tokens, find_balance("doctor", how.tokens.balance, "")
        weighed = "even" if balance == Balance() else str(how.tokens.balance)
        values = (tokens.budget, tokens.allocator, tokens.relevance, weighed, tokens.turn)
        finer = f"{tokens.finer.at(tokens.budget):g}"
        print(f"{door:30}", *(f"{value!s:9}" for value in (*values, finer, tokens.patch, how.looks)))


def doors() -> "Iterator[tuple[str, AskConfig | str]]":
    """Every door with the config that it resolves to by itself, or why it cannot be opened here."""
    import texturevlm as tv
    from texturevlm.ask.config import AskConfig
    from texturevlm.corpus.recipe import Recipe
    from texturevlm.pages import SharedBudget

    for name in ("choose_tokens", "place", "choose_pages"):
        yield f"{name}(…)", AskConfig(tv.TokenConfig())
    yield "SharedBudget()", AskConfig(SharedBudget().how)
    yield "compile(…)", AskConfig(tv.compile((64, 64), device="cpu", graphs=0).how)
    yield "corpus.build(…)", AskConfig(Recipe("", "images").tokens)
    yield "VideoStream(…)", _stream(tv.VideoStream((64, 64)))
    for command, *words in (("look", __file__), ("allocate", __file__), ("corpus", ".", "--out", "DIR")):
        yield f"texturevlm {command}", AskConfig(arguments.tokens_of(_parsed(command, *words)))
    yield "texturevlm serve, no model", _server(None)
    arguments.quiet_bars("doctor")
    try:
        model = tv.load_vlm("reader", device="cpu", captured=False)
    except (OSError, ImportError) as error:
        yield "doors of the reader", str(error)
        return
    yield from _doors_of(model)


def _doors_of(model: "VLM") -> "Iterator[tuple[str, AskConfig | str]]":
    """The doors that have a model: its own settings come before the package's defaults."""
    import texturevlm as tv
    from texturevlm.ask.config import AskConfig
    from texturevlm.ask.processor import TextureProcessor
    from texturevlm.vllm_plugin.options import chosen_options

    network, wrapped = model.model, model.processor
    config, processor = network.config, wrapped.processor
    yield "reader: ask, chat, clips, PDFs", model.config
    yield "reader: server", _server(model)
    yield "reader: TextureProcessor", AskConfig(TextureProcessor.from_pretrained("reader").config_for(1))
    yield "reader: attach", AskConfig(tv.attach(network, processor).config_for(1))
    yield "reader: VideoStream", _stream(tv.VideoStream((64, 64), model=model))
    own = {name: value for name, value in chosen_options({}, config).items() if name != "question"}
    yield "reader: vLLM", AskConfig(TextureProcessor(processor, config, **own).config_for(1))
    if find_spec("lmms_eval") is None or find_spec("texturevlm_lab") is None:
        yield "reader: lmms-eval", "not installed"
        return
    lmms = import_module("texturevlm_lab.evaluate.lmms_model")
    yield "reader: lmms-eval", lmms.TextureModel("reader", device="cpu").vlm.config


def _server(model: "VLM | None") -> "AskConfig | str":
    """What a server with this model takes where a client gives nothing."""
    if find_spec("fastapi") is None:
        return "not installed"
    from texturevlm.serve.app import Settings

    return Settings(model=model).config


def _stream(stream: "VideoStream") -> "AskConfig":
    """The config of the tokens of a frame."""
    from texturevlm.ask.config import AskConfig

    return AskConfig(stream.config.tokens)


def _parsed(command: str, *words: str) -> argparse.Namespace:
    """The options of a command that is given its arguments and nothing else."""
    parser = arguments.Parser()
    commands = parser.add_subparsers(dest="command")
    getattr(import_module(f"texturevlm.commands.{command}"), f"add_{command}")(commands)
    return parser.parse_args([command, *words])

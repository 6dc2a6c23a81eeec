"""texturevlm serve: a page to look at and an API to call, on this machine."""

import argparse
import os
import secrets
import socket
from typing import Any

from texturevlm.commands import arguments
from texturevlm.defaults import BUDGET
from texturevlm.extras import extra

UPSTREAM_KEY = "TEXTUREVLM_UPSTREAM_KEY"  # in the environment, so that it is in no list of processes
TOKEN = "TEXTUREVLM_TOKEN"


def add_serve(commands: arguments.Commands) -> None:
    said = f"The token is read from the environment ({TOKEN}), the key of --upstream too ({UPSTREAM_KEY})."
    parser = arguments.add_command(
        commands, "serve", _serve, "open a page to look at images, and an API for questions", description=said
    )
    models = "a hub id or a folder, of a family in docs/models.md, reader, or none: the page without answers"
    parser.add_option("--model", "PATH_OR_ID", f"{models} (default: reader, or none with --upstream)")
    parser.add_option("--upstream", "URL", "an OpenAI-compatible server (…/v1) that answers, from overview and crops")
    parser.add_option("--upstream-model", "NAME", "its model (default: as the client says)")
    parser.add_option("--host", "ADDRESS", "other addresses than this machine's own need a token", "127.0.0.1")
    parser.add_option("--port", "N", "", 8080, type=arguments.count)
    parser.add_count("--budget", f"tokens of a question that names no budget (default: the model's, or {BUDGET})")
    parser.add_device()
    parser.add_option("--dtype", "T", "such as bfloat16 (default: the checkpoint's own)")
    parser.add_option("--cache-mb", "N", "what is kept of recent images, at most", 1024, type=arguments.count)
    parser.add_option("--upload-mb", "N", "a file, at most", 64, type=arguments.count)
    parser.add_option("--megapixels", "N", "an image, a page or a frame, at most", 40, type=arguments.count)
    parser.add_option("--seconds", "N", "a request, at most", 120, type=arguments.count)
    parser.add_option("--waiting", "N", "requests that wait; more are answered 429", 64, type=arguments.count)


def _serve(options: argparse.Namespace) -> int:
    extra("needs", "serve", "fastapi", "uvicorn")
    from texturevlm.serve.app import create_app
    from texturevlm.serve.connections import server_of
    from texturevlm.serve.guard import is_loopback

    token = os.environ.get(TOKEN) or None
    if token is None and not is_loopback(options.host):
        token = secrets.token_urlsafe(24)
    if options.port > 65535:
        raise ValueError(f"--port must be at most 65535, got {options.port}")
    listening = _listening(options.host, options.port)  # before a model is loaded
    app = create_app(_settings(options, token))
    shown = f"[{options.host}]" if ":" in options.host else options.host
    print(f"http://{shown}:{options.port}/" + (f"#token={token}" if token else ""), flush=True)
    server_of(app).run([listening])
    return 0


def _listening(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise ValueError(f"--host and --port must be free to listen on, got {host} {port}: {error.strerror}") from None


def _settings(options: argparse.Namespace, token: str | None) -> Any:
    """What the server is given; the model is loaded last."""
    import texturevlm as tv
    from texturevlm.serve.app import Settings
    from texturevlm.serve.limits import MEBI, Limits
    from texturevlm.serve.proxy import Upstream

    if options.upstream and options.model not in (None, "none"):
        raise ValueError(f"--model and --upstream exclude one another, got {options.model} and {options.upstream}")
    if options.upstream and not options.upstream.startswith(("http://", "https://")):
        raise ValueError(f"--upstream must be an address of http or https, got {options.upstream}")
    limits = Limits(
        upload_bytes=options.upload_mb * MEBI,
        pixels=options.megapixels * 1_000_000,
        cache_bytes=options.cache_mb * MEBI,
        seconds=options.seconds,
        waiting=options.waiting,
    )
    device = arguments.device_of(options)
    settings = Settings(token=token, device=device, limits=limits, budget=options.budget or BUDGET)
    if options.upstream:
        key = os.environ.get(UPSTREAM_KEY, "")
        settings.upstream = Upstream(options.upstream, key, options.upstream_model or "", options.seconds)
        settings.name = options.upstream_model or ""
    elif options.model != "none":
        name = options.model or "reader"
        with arguments.announced(f"loading {name}"):
            settings.model = tv.load_vlm(name, device=device, dtype=options.dtype, budget=options.budget)
        settings.name = name
    return settings

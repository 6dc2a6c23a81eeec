"""The command: mistakes are said before a model is loaded; the token follows the address."""

import socket
from argparse import Namespace

import pytest

from texturevlm.cli import main
from texturevlm.commands import serve


@pytest.fixture
def started(monkeypatch):
    """What the server was given, instead of running it."""
    import uvicorn

    found = []
    monkeypatch.setattr(uvicorn.Server, "run", lambda self, sockets: found.append((self.config.app, sockets[0])))
    monkeypatch.delenv(serve.TOKEN, raising=False)
    yield found
    for _, listening in found:
        listening.close()


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as found:
        return str(found.getsockname()[1])


@pytest.mark.parametrize(("arguments", "said"), [
    (["--port", "99999"], "--port must be at most 65535"),
    (["--upstream", "ftp://x"], "must be an address of http"),
    (["--upstream", "http://x/v1", "--model", "reader"], "exclude one another"),
    (["--budget", "0"], "whole number from 1"),
    (["--host", "not an address"], "must be free to listen on"),
])  # fmt: skip
def test_mistakes_get_one_line(arguments, said, capsys, started):
    port = [] if "--port" in arguments else ["--port", free_port()]
    try:
        status = main(["serve", *port, *arguments])
    except SystemExit as left:
        status = left.code
    error = capsys.readouterr().err
    assert status == 2 and said in error and len(error.splitlines()) == 1 and not started


def test_a_port_in_use_is_said_before_a_model_is_loaded(capsys, started):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main(["serve", "--port", str(taken.getsockname()[1]), "--model", "/nothing"]) == 2
    assert "must be free to listen on" in capsys.readouterr().err


def test_this_machine_alone_unless_told(capsys, started):
    assert main(["serve", "--model", "none", "--port", free_port()]) == 0
    guard, listening = started[0]
    assert listening.getsockname()[0] == "127.0.0.1" and guard.token is None
    assert "token" not in capsys.readouterr().out


def test_another_address_gets_a_token(capsys, started, monkeypatch):
    monkeypatch.setattr(serve, "_listening", lambda host, port: socket.create_server(("127.0.0.1", 0)))
    assert main(["serve", "--model", "none", "--host", "0.0.0.0", "--port", "8080"]) == 0
    token = started[0][0].token
    assert len(token) >= 32 and f"#token={token}" in capsys.readouterr().out
    monkeypatch.setenv(serve.TOKEN, "mine")
    assert main(["serve", "--model", "none", "--host", "0.0.0.0", "--port", "8080"]) == 0
    assert started[1][0].token == "mine"


def test_keys_come_from_the_environment(monkeypatch):
    monkeypatch.setenv(serve.UPSTREAM_KEY, "k")
    given = {"upstream": "http://x/v1", "upstream_model": "big", "model": None, "budget": 64, "device": "cpu"}
    limits = {"upload_mb": 1, "cache_mb": 2, "seconds": 3, "waiting": 4, "megapixels": 5, "command": "serve"}
    settings = serve._settings(Namespace(**given, **limits), None)
    assert settings.upstream.key == "k" and settings.upstream.model == "big" and settings.budget == 64
    assert settings.limits.upload_bytes == 1 << 20 and settings.limits.waiting == 4
    assert settings.limits.pixels == 5_000_000

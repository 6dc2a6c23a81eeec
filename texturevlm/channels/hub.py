"""Whether a model of the hub must come from the cache. Asked once, because transformers retries for half a minute."""

import socket
from collections.abc import Sequence
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

PATIENCE = 3.0  # seconds to reach the hub


def only_cached(function: str, name: str, hub: Any, options: dict[str, Any], files: Sequence[str]) -> bool:
    """Whether the hub cannot or must not be asked for a model; raises if the cache does not have it then.

    name:    a hub id
    hub:     the package huggingface_hub
    options: of `from_pretrained`
    files:   of which the cache has one if it has the model
    """
    if options.get("local_files_only"):
        reason = "local_files_only is set"
    elif hub.is_offline_mode():
        reason = "HF_HUB_OFFLINE is set"
    else:
        found = unreachable(hub.constants.ENDPOINT)
        if found is None:
            return False
        reason = f"no network: {urlsplit(hub.constants.ENDPOINT).hostname} cannot be reached ({found})"
    cache = options.get("cache_dir") or hub.constants.HF_HUB_CACHE
    folder = f"{options['subfolder']}/" if options.get("subfolder") else ""
    places = [hub.try_to_load_from_cache(name, folder + file, cache, options.get("revision")) for file in files]
    if not any(isinstance(one, str) for one in places):
        raise ConnectionError(f"{function}: {reason}, and {name} is neither a folder nor in the cache {Path(cache)}")
    return True


def unreachable(endpoint: str) -> str | None:
    """Why a server, or the proxy before it, does not take connections; None if it does."""
    where = urlsplit(endpoint)
    proxy = None if proxy_bypass(where.hostname or "") else getproxies().get(where.scheme)
    if proxy:
        where = urlsplit(proxy if "//" in proxy else f"//{proxy}")
    port = where.port or (80 if where.scheme == "http" else 443)
    failed = [f"no answer in {PATIENCE:g} s"]

    def connect() -> None:
        try:
            socket.create_connection((where.hostname or "", port), timeout=PATIENCE).close()
            failed.clear()
        except OSError as error:
            failed[0] = error.strerror or str(error)

    # A thread, because looking up a name has no timeout.
    thread = Thread(target=connect, name="texturevlm-hub", daemon=True)
    thread.start()
    thread.join(PATIENCE)
    return failed[0] if failed else None

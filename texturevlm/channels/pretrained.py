"""Models of transformers from a hub id or a folder, with clear errors where one cannot be loaded.

Whether a model of the hub must come from the cache is asked once: transformers would retry for half a minute.
"""

import hashlib
import importlib
import importlib.util
import json
import os
import socket
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Thread
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import torch
from torch import Tensor
from torch.nn import functional

from texturevlm.check import check_choice
from texturevlm.extras import extra
from texturevlm.paths import is_url

HUB_OPTIONS = ("revision", "trust_remote_code", "token", "cache_dir", "local_files_only", "subfolder", "force_download")
NO_OPTIONS: Mapping[str, Any] = MappingProxyType({})
ModelPath = str | os.PathLike[str] | None  # a hub id or a folder; None raises


def optional(function: str, package: str) -> Any:
    """A package of the extra `hf`, imported when it is needed."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise ImportError(f"{function}: needs {package}; pip install 'texturevlm[hf]' ({error})") from error


def load_rapidocr(function: str, **parameters: Any) -> Any:
    """RapidOCR (extra `ocr`), which comes with its models; parameters: its settings, by their full names."""
    rapidocr = extra(f"{function}: needs", "ocr", "rapidocr")
    return rapidocr.RapidOCR(params={"Global.log_level": "critical", **parameters})


def model_pixels(
    network: Any, image: Tensor, size: tuple[int, int], mean: Tensor, std: Tensor, *, mode: str = "bilinear"
) -> Tensor:
    """(B, 3 or 1, H, W) → (B, 3, *size), resized and normalised as a model's own image processor does."""
    pixels = image.to(network.device, torch.float32)
    if pixels.shape[2:] != size:
        pixels = functional.interpolate(pixels, size, mode=mode, align_corners=False, antialias=True)
    mean, std = (values.to(pixels.device)[:, None, None] for values in (mean, std))
    normalised: Tensor = ((pixels.clamp(0, 1) - mean) / std).to(network.dtype)
    return normalised


def load_pretrained(
    function: str, model: ModelPath, architectures: dict[str, str], device: torch.device | str | None
) -> tuple[Any, Any, str]:
    """A model of transformers in evaluation mode, its image processor and the digest of its weights.

    model:         a hub id or a folder
    architectures: the class for each model_type that will do
    """
    checkpoint = Checkpoint.find(function, model, architectures)
    place = torch_device(function, device)
    processor = checkpoint.image_processor()
    network = checkpoint.network(place)
    return network, processor, weight_digest(network)


@dataclass(frozen=True)
class Checkpoint:
    """The files of a model, of a known architecture. Its parts are loaded one by one, the weights last.

    function:     that loads it, for errors
    name:         a hub id or a folder
    architecture: the class of the model: a name of transformers, or "package.module:name"
    options:      of `from_pretrained`
    """

    function: str
    name: str
    architecture: str
    options: dict[str, Any]

    @classmethod
    def find(
        cls, function: str, model: ModelPath, architectures: Mapping[str, str], options: Mapping[str, Any] = NO_OPTIONS
    ) -> "Checkpoint":
        """Read the type of a model; arguments as for `locate` and `known`."""
        return cls.locate(function, model, options).known(architectures)

    @classmethod
    def locate(
        cls,
        function: str,
        model: ModelPath,
        options: Mapping[str, Any] = NO_OPTIONS,
        files: Sequence[str] = ("config.json",),
    ) -> "Checkpoint":
        """A folder, or a hub id whose files can be had. Nothing is read yet.

        files: of which the cache must have one if the hub cannot be asked
        """
        if not model or not isinstance(model, (str, os.PathLike)):
            wanted = "a hub id or a folder with a model of transformers"
            raise ValueError(f"{function}: model must be {wanted}, got {model!r}")
        name = os.fspath(model)
        options = {"trust_remote_code": False, **options}
        if not os.path.isdir(name):
            if is_url(name):
                raise ValueError(f"{function}: model must be a hub id {_id_in(name)}or a folder, got the URL {name}")
            if os.path.isabs(name) or name.startswith((".", "~")) or name.count("/") > 1:
                raise FileNotFoundError(f"{function}: no such folder: {name}")
            with model_errors(function, f"a hub id or a folder, got {name}"):
                if only_cached(function, name, optional(function, "huggingface_hub"), options, files):
                    options["local_files_only"] = True
        return cls(function, name, "", options)

    def known(self, architectures: Mapping[str, str]) -> "Checkpoint":
        """Read the type of the model, and with it its class.

        architectures: the class for each model_type that will do
        """
        return replace(self, architecture=architectures[self.model_type(architectures)])

    def model_type(self, known: Collection[str]) -> str:
        """The model_type in the checkpoint's config, which must be one of these."""
        with self.errors("complete and undamaged" if os.path.isdir(self.name) else "a hub id or a folder"):
            # the table alone: AutoConfig would want the code of a model that is unknown anyway
            config = optional(self.function, "transformers").PreTrainedConfig
            table, _ = config.get_config_dict(self.name, **self.shared)
            if "model_type" not in table:
                raise ValueError("config.json with a model_type is missing")
        return check_choice(self.function, f"model_type of {self.name}", table["model_type"], known)

    def file(self, name: str) -> Path | None:
        """A further file of the checkpoint, on this machine; None if it has none of this name."""
        where = {option: value for option, value in self.shared.items() if option != "trust_remote_code"}
        with self.errors("complete and undamaged" if os.path.isdir(self.name) else "a hub id or a folder"):
            found = optional(self.function, "transformers.utils").cached_file(
                self.name,
                name,
                **where,
                _raise_exceptions_for_missing_entries=False,
                # without the hub, what the cache lacks may exist there: as good as missing
                _raise_exceptions_for_connection_errors=not where.get("local_files_only"),
            )
        return None if found is None else Path(found)

    @property
    def shared(self) -> dict[str, Any]:
        """The options that say where files come from."""
        return {option: self.options[option] for option in HUB_OPTIONS if option in self.options}

    def config(self) -> Any:
        """The config of the model."""
        with self.errors("complete and undamaged"):
            return self._class.config_class.from_pretrained(self.name, **self.shared)

    def image_processor(self) -> Any:
        """The image processor, which needs no torchvision."""
        with self.errors("complete and undamaged"):
            # by its module: in 5.10 the name in `transformers` itself wants torchvision
            auto = optional(self.function, "transformers.models.auto.image_processing_auto").AutoImageProcessor
            return auto.from_pretrained(self.name, backend="pil", **self.shared)

    def network(self, place: torch.device, dtype: torch.dtype | None = None) -> Any:
        """The model in evaluation mode, without gradients.

        place: where it will be; not used if the options have a device_map
        dtype: the checkpoint's own if None
        """
        options = dict(self.options)
        accelerate = importlib.util.find_spec("accelerate") is not None
        if options.get("device_map") is not None:
            if not accelerate:
                raise ImportError(f"{self.function}: device_map needs accelerate; pip install accelerate")
        elif place.type != "cpu" and accelerate:
            options["device_map"] = {"": place}  # a large model need not fit into the memory of the host
        further = [option for option in self.options if option not in HUB_OPTIONS]
        wanted = f"one that takes {', '.join(further)}" if further else "complete and undamaged"
        with self.errors(wanted):
            try:
                network, report = self._class.from_pretrained(
                    self.name, dtype=dtype or "auto", output_loading_info=True, **options
                )
            except (TypeError, AttributeError, ImportError) as error:  # of an option, or of a package that it needs
                if not further:
                    raise
                raise ValueError(str(error)) from error
        if missing := sorted(report["missing_keys"]):
            lacks = f"{self.name} lacks {len(missing)} weights: {missing[0]} …"
            raise ValueError(f"{self.function}: model must be complete, {lacks}")
        # Moved by device only: a cast would round the rotary frequencies, which transformers keeps in float32.
        network = network if options.get("device_map") is not None else network.to(place)
        return network.eval().requires_grad_(False)

    @contextmanager
    def errors(self, wanted: str) -> Iterator[None]:
        """Errors of a part in one line, with the damaged file if there is one."""
        if self.options.get("local_files_only") and not os.path.isdir(self.name):
            wanted += " in the cache"
        try:
            with model_errors(self.function, f"{wanted}, got {self.name}"):
                yield
        except ValueError as error:
            if reason := damaged(self.name):
                whole = f"complete and undamaged, got {self.name}: {reason}"
                raise ValueError(f"{self.function}: model must be {whole}") from error
            raise

    @property
    def _class(self) -> Any:
        module, _, name = self.architecture.rpartition(":")
        return getattr(optional(self.function, module or "transformers"), name)


def _id_in(url: str) -> str:
    """The id in the address of a page of the hub, for an error."""
    parts = urlsplit(url).path.strip("/").split("/")
    return f"({'/'.join(parts[:2])}) " if len(parts) > 1 else ""


def damaged(folder: str) -> str | None:
    """The first file of a checkpoint that is missing or cannot be read, and why."""
    for path in sorted(Path(folder).glob("*.json")):
        try:
            table = json.loads(path.read_text())
        except ValueError as error:
            return f"{path.name} is not JSON ({error})"
        if path.name.endswith(".safetensors.index.json"):
            for name in sorted(set(table.get("weight_map", {}).values())):
                if not (path.parent / name).is_file():
                    return f"{name} is missing, which {path.name} names"
    safetensors = optional("load", "safetensors")
    for path in sorted(Path(folder).glob("*.safetensors")):
        try:
            safetensors.safe_open(path, "pt")
        except (OSError, safetensors.SafetensorError) as error:
            return f"{path.name} is damaged ({error})"
    return None


@contextmanager
def model_errors(function: str, wanted: str) -> Iterator[None]:
    """What transformers raises for a model it cannot read, as one line in our style."""
    try:
        yield
    except ImportError as error:  # of a package that only this model needs, such as SigLIP's sentencepiece
        raise ImportError(f"{function}: pip install 'texturevlm[hf]' ({' '.join(str(error).split())})") from error
    except ConnectionError:
        raise
    except (OSError, ValueError, RuntimeError, optional(function, "safetensors").SafetensorError) as error:
        raise ValueError(f"{function}: model must be {wanted}: {' '.join(str(error).split())}") from error


def torch_device(function: str, device: torch.device | str | None) -> torch.device:
    """The device, if this machine has it; the CPU if None."""
    try:
        found = torch.device("cpu" if device is None else device)
    except RuntimeError:
        raise ValueError(
            f"{function}: device must be one of torch's, such as cpu, cuda or cuda:1, got {device!r}"
        ) from None
    count = torch.cuda.device_count()
    if found.type == "cuda" and (found.index or 0) >= count:
        raise ValueError(f"{function}: device must be one of this machine's {count} GPUs or cpu, got {device}")
    return found


def weight_digest(network: torch.nn.Module) -> str:
    """Of the first numbers of every weight; sorted, so that neither names nor their order matter."""
    parts = (weight.detach().flatten()[:64].cpu().contiguous().view(torch.uint8) for weight in network.parameters())
    return hashlib.sha256(b"".join(sorted(part.numpy().tobytes() for part in parts))).hexdigest()


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
    if not any(isinstance(place, str) for place in places):
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

"""Dense image-text features, reduced to 16 numbers per patch: the layers embedding_0 … embedding_15.

An image-text model pools an image into one vector that is comparable with text. Its patch tokens are not comparable:
nothing ever trained them to be. So each patch is pooled alone, by the weights that pool the image:

- CLIP gathers the image in its last block. That block is run on each patch by itself, so that its attention is the
  value path and nothing else (MaskCLIP, Zhou et al. 2022), then the post-layernorm and the visual projection follow.
- SigLIP and SigLIP 2 gather the image in an attention head behind the tower. The head is run on each patch by itself:
  the result is the model's answer to an image in which it attends to that patch alone.

Images keep their aspect: they are resized to as many whole patches as the model was trained with, and its position
embeddings are interpolated to that grid. Tiling would keep the positions as trained, but a tile does not see the rest
of the image, and seams show.
"""

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from texturevlm.channels.pretrained import ModelPath, load_pretrained, model_errors, model_pixels, optional
from texturevlm.check import check_count, check_finite, check_floating, check_shapes

DIMENSIONS = 16  # of a reduced feature
FORMAT = "texturevlm projection 1"
_ARCHITECTURES = {"clip": "CLIPModel", "siglip": "SiglipModel"}  # fixed-resolution SigLIP 2 has the type "siglip" too
RESAMPLE = {2: "bilinear"}  # Pillow's numbers; everything else is bicubic
_TOGETHER = 1 << 14  # tokens pooled alone in one call: attention kernels take at most 65,535 sequences


@dataclass(frozen=True, eq=False)
class DenseEncoder:
    """A CLIP, SigLIP or SigLIP 2 model of transformers, read patch by patch.

    network: the model
    model:   the hub id or folder it came from
    digest:  of its weights as stored: the same model under another name, or loaded in another precision, has the same
    mean, std: (3,), of the pixels the model was trained on
    resample: bilinear or bicubic, as its own image processor does
    """

    network: Any
    model: str
    digest: str
    mean: Tensor
    std: Tensor
    resample: str

    @classmethod
    def load(
        cls, model: ModelPath, *, device: torch.device | str | None = None, dtype: torch.dtype = torch.float32
    ) -> "DenseEncoder":
        """From a hub id (openai/clip-vit-base-patch16, google/siglip2-base-patch16-224) or a folder of such files."""
        network, processor, digest = load_pretrained("DenseEncoder.load", model, _ARCHITECTURES, device)
        if network.config.model_type == "siglip" and not network.vision_model.use_head:
            raise ValueError(f"DenseEncoder.load: model must have its pooling head, got {model} without one")
        mean, std = (torch.tensor(list(values)) for values in (processor.image_mean, processor.image_std))
        return cls(network.to(dtype), str(model), digest, mean, std, RESAMPLE.get(int(processor.resample), "bicubic"))

    @property
    def patches(self) -> int:
        """How many patches the model was trained with."""
        vision = self.network.config.vision_config
        return int(vision.image_size // vision.patch_size) ** 2

    def encode(self, image: Tensor, *, patches: int | None = None) -> Tensor:
        """The feature of each patch, of unit length: its dot product with `text` is their similarity.

        image:   (B, 3, H, W) or (B, 1, H, W), values 0 to 1, any size and aspect
        patches: at most this many; the model's own number if None. More are finer, and further from the training
        returns  (B, D, h, w) float32 on the model's device, h : w as near to H : W as whole patches allow
        """
        sizes = check_shapes("DenseEncoder.encode", image=(image, "B C H W"))
        check_floating("DenseEncoder.encode", image=image)
        if sizes["C"] not in (1, 3):
            raise ValueError(f"DenseEncoder.encode: image must have 3 channels or 1, got {tuple(image.shape)}")
        budget = self.patches if patches is None else check_count("DenseEncoder.encode", "patches", patches, 1)
        rows, columns = patch_grid(sizes["H"], sizes["W"], budget)
        with torch.inference_mode():
            tokens = FEATURES[self.network.config.model_type](self.network, self._pixels(image, rows, columns))
            features = functional.normalize(tokens.float(), dim=2).mT.reshape(len(tokens), -1, rows, columns)
        return features.clone()  # outside: an inference tensor could not be trained on

    def text(self, question: str) -> Tensor:
        """The feature of a text, (D,) float32 of unit length; text beyond the model's context is cut off.

        In lower case, as SigLIP 2 was trained and the other tokenizers do anyway. The SigLIPs were trained on texts
        padded on the right to full length, and without a mask.
        """
        if not isinstance(question, str) or not question.strip():
            raise ValueError(f"DenseEncoder.text: question must be some text, got {question!r}")
        longest = self.network.config.text_config.max_position_embeddings
        padding = "max_length" if self.network.config.model_type == "siglip" else False
        shape = {"padding": padding, "padding_side": "right", "truncation": True, "max_length": longest}
        encoded = self._tokenizer(question.lower(), return_tensors="pt", **shape)
        with torch.inference_mode():
            found = self.network.get_text_features(input_ids=encoded["input_ids"].to(self.network.device))
            feature = functional.normalize(found.pooler_output[0].float(), dim=0)
        return feature.clone()

    def _pixels(self, image: Tensor, rows: int, columns: int) -> Tensor:
        """(B, 3, rows·P, columns·P), the input of the network."""
        side = self.network.config.vision_config.patch_size
        size = (rows * side, columns * side)
        return model_pixels(self.network, image, size, self.mean, self.std, mode=self.resample)

    @cached_property
    def _tokenizer(self) -> Any:
        """Only texts need it, so it is loaded with the first one."""
        transformers = optional("DenseEncoder.text", "transformers")
        with model_errors("DenseEncoder.text", f"a model with a tokenizer, got {self.model}"):
            tokenizer = transformers.AutoTokenizer.from_pretrained(self.model)
        words, known = self.network.config.text_config.vocab_size, len(tokenizer)
        if known < words // 2:  # without its files, transformers makes an empty one and does not complain
            raise ValueError(f"DenseEncoder.text: tokenizer of {self.model} must know {words} words, got {known}")
        return tokenizer


def patch_grid(height: int, width: int, budget: int) -> tuple[int, int]:
    """Rows and columns of at most `budget` patches, nearly square ones, that cover an image of that aspect."""
    scale = (budget / (height * width)) ** 0.5
    rows = min(max(round(height * scale), 1), budget)
    return rows, min(max(round(width * scale), 1), budget // rows)


def _clip_features(network: Any, pixels: Tensor) -> Tensor:
    """(B, 3, H, W) → (B, N, D)."""
    vision = network.vision_model
    tokens = vision.pre_layrnorm(vision.embeddings(pixels, interpolate_pos_encoding=True))
    *layers, last = vision.encoder.layers
    for layer in layers:
        tokens = layer(tokens, None)
    alone = _each_alone(lambda part: last(part, None), tokens[:, 1:])  # without the class token
    projected: Tensor = network.visual_projection(vision.post_layernorm(alone))
    return projected


def _siglip_features(network: Any, pixels: Tensor) -> Tensor:
    """(B, 3, H, W) → (B, N, D)."""
    vision = network.vision_model
    return _each_alone(vision.head, vision(pixels, interpolate_pos_encoding=True).last_hidden_state)


FEATURES = {"clip": _clip_features, "siglip": _siglip_features}


def _each_alone(layer: Any, tokens: Tensor) -> Tensor:
    """A layer run on every token (B, N, D) as if there were no other."""
    parts = torch.split(tokens.reshape(-1, 1, tokens.shape[2]), _TOGETHER)
    return torch.cat([layer(part) for part in parts]).reshape(tokens.shape)


@dataclass(frozen=True, eq=False)
class Projection:
    """A linear map from features to 16 numbers between -1 and 1.

    mean:     (D,)
    basis:    (16, D), orthonormal rows. Distances between features are kept as well as 16 numbers can
    scale:    the value that becomes 1
    variance: the share of the features' variance that is kept
    model, digest: the model whose features these are
    """

    mean: Tensor
    basis: Tensor
    scale: float
    variance: float
    model: str = ""
    digest: str = ""

    def __post_init__(self) -> None:
        check_shapes("Projection", mean=(self.mean, "D"), basis=(self.basis, f"{DIMENSIONS} D"))
        check_floating("Projection", mean=self.mean, basis=self.basis)
        check_finite("Projection", mean=self.mean, basis=self.basis)
        if not 0 < self.scale < float("inf"):
            raise ValueError(f"Projection: scale must be a positive number, got {self.scale}")

    def apply(self, features: Tensor) -> Tensor:
        """(B, D, h, w) → (B, 16, h, w), clamped to -1 … 1."""
        check_floating("Projection.apply", features=features)
        mean, basis = self._at(features)
        check_shapes("Projection.apply", mean=(mean, "D"), features=(features, "B D h w"))
        centred = features - mean[:, None, None]
        return (torch.einsum("kd,bdhw->bkhw", basis, centred) / self.scale).clamp(-1, 1)

    def similarity(self, reduced: Tensor, text: Tensor) -> Tensor:
        """The dot product of a text with each feature, estimated from its 16 numbers.

        reduced: (B, 16, h, w), from `apply`
        text:    (D,), from `DenseEncoder.text`
        returns  (B, h, w)
        """
        mean, basis = self._at(reduced)
        shapes = {"reduced": (reduced, f"B {DIMENSIONS} h w"), "mean": (mean, "D"), "text": (text, "D")}
        check_shapes("Projection.similarity", **shapes)
        return torch.einsum("k,bkhw->bhw", basis @ text, reduced) * self.scale + mean @ text

    def _at(self, tensor: Tensor) -> tuple[Tensor, Tensor]:
        return self.mean.to(tensor), self.basis.to(tensor)

    def save(self, path: str | os.PathLike[str]) -> None:
        """As safetensors, written whole or not at all."""
        path = Path(path)
        described = {"format": FORMAT, "model": self.model, "digest": self.digest}
        described |= {"scale": repr(float(self.scale)), "variance": repr(float(self.variance))}
        tensors = {"mean": self.mean.cpu().contiguous(), "basis": self.basis.cpu().contiguous()}
        data = optional("Projection.save", "safetensors.torch").save(tensors, metadata=described)
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            partial.write_bytes(data)
            os.replace(partial, path)
        finally:
            partial.unlink(missing_ok=True)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Projection":
        """Read the projection that `save` wrote to a file."""
        safetensors = optional("Projection.load", "safetensors")
        if not Path(path).is_file():
            raise FileNotFoundError(f"Projection.load: no such file: {path}")
        try:
            with safetensors.safe_open(str(path), framework="pt") as file:
                described = file.metadata() or {}
                if described.get("format") != FORMAT:
                    raise ValueError(f"its format is {described.get('format')!r}, not {FORMAT!r}")
                tensors = file.get_tensor("mean"), file.get_tensor("basis")
                scale, variance = float(described["scale"]), float(described["variance"])
                return cls(*tensors, scale, variance, described["model"], described["digest"])
        except (safetensors.SafetensorError, KeyError, ValueError, TypeError) as error:
            raise ValueError(f"Projection.load: {path} is damaged or no projection of `fit-pca`: {error}") from error


def embed(
    image: Tensor, encoder: DenseEncoder | None, projection: Projection | None, *, size: tuple[int, int] | None = None
) -> Tensor:
    """The 16 embedding layers of an image.

    image:   (B, 3, H, W) or (B, 1, H, W), values 0 to 1
    size:    (height, width) to resample to (bilinear), a level of the image's texture; the patch grid's own if None
    returns  (B, 16, h, w), values -1 to 1, on the encoder's device
    """
    if not isinstance(encoder, DenseEncoder):
        raise ValueError(
            "embed: encoder must be a DenseEncoder; make one with DenseEncoder.load(hub id or folder of a CLIP, SigLIP "
            f"or SigLIP 2 model), got {encoder!r}"
        )
    if not isinstance(projection, Projection):
        raise ValueError(
            "embed: projection must be a Projection; fit one with `texturevlm fit-pca IMAGES… --model "
            f"{encoder.model} --out FILE.safetensors` and pass Projection.load(FILE), got {projection!r}"
        )
    if projection.digest != encoder.digest:
        raise ValueError(
            f"embed: projection must be fitted on the encoder's model, {encoder.model} (weights {encoder.digest[:8]}), "
            f"got one fitted on {projection.model or 'an unnamed model'} (weights {projection.digest[:8]})"
        )
    reduced = projection.apply(encoder.encode(image))
    return reduced if size is None else functional.interpolate(reduced, size, mode="bilinear", align_corners=False)

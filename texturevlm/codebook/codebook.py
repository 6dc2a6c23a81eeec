"""Codebook: features of tokens → uint16 codes → features.

A token's level chooses a book: coarse tokens show other things than fine ones. A book first takes the mean away and
divides each part of a feature (embedding, DeepStack) by its spread, so that all parts count alike. A row is cut into
groups, and each group is approximated by a sum of entries, one per stage: the second stage holds what the first left,
and so on (residual quantisation). A code is the number of an entry: a token takes groups × stages numbers of 16 bits.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from texturevlm.channels import optional
from texturevlm.check import check_count, check_finite, check_floating, check_shapes
from texturevlm.codebook.features import TokenFeatures
from texturevlm.vlm import Adapter

MOST_ENTRIES = 1 << 16  # a code is a uint16
CODE_BYTES = 2
FEATURE_BYTES = 2  # of a number of a feature that is stored as it is, in bfloat16
_FORMAT = "texturevlm codebook 1"
_TENSORS = ("entries", "mean", "spread", "edges")
_AT_ONCE = 1 << 24  # distances that are computed together
_FIRST = 64  # numbers of a weight that its digest reads


@dataclass(frozen=True, eq=False)
class Codebook:
    """B books of G groups, S stages and K entries each, for rows of W numbers.

    entries: (B, G, S, K, W / G)
    mean:    (B, W)
    spread:  (B, W), above 0
    edges:   (B − 1,), ascending: the levels at which the next book begins
    model, digest: the model whose features these are
    """

    entries: Tensor
    mean: Tensor
    spread: Tensor
    edges: Tensor
    model: str = ""
    digest: str = ""

    def __post_init__(self) -> None:
        sizes = check_shapes(
            "Codebook",
            entries=(self.entries, "B G S K d"),
            mean=(self.mean, "B W"),
            spread=(self.spread, "B W"),
            edges=(self.edges, "E"),
        )
        tensors = {"entries": self.entries, "mean": self.mean, "spread": self.spread}
        check_floating("Codebook", **tensors)
        check_finite("Codebook", **tensors)
        if sizes["G"] * sizes["d"] != sizes["W"] or sizes["E"] != sizes["B"] - 1 or sizes["K"] > MOST_ENTRIES:
            wanted = "(B, G, S, K up to 65536, W / G) for a mean (B, W) and edges (B − 1,)"
            got = ", ".join(str(tuple(tensor.shape)) for tensor in (self.entries, self.mean, self.edges))
            raise ValueError(f"Codebook: entries must be {wanted}, got {got}")

    @property
    def width(self) -> int:
        """Numbers of a feature."""
        return self.mean.shape[1]

    @property
    def token_bytes(self) -> int:
        """The bytes of a token's codes."""
        return CODE_BYTES * self.entries.shape[1] * self.entries.shape[2]

    @property
    def smaller(self) -> float:
        """How many times smaller codes are than features of 16 bits per number."""
        return FEATURE_BYTES * self.width / self.token_bytes

    def book(self, level: Tensor) -> Tensor:
        """(N,): the book of each token, by its level (N,)."""
        return torch.bucketize(level.float(), self.edges.to(level.device), right=True)

    def encode(self, features: TokenFeatures) -> Tensor:
        """(N, G, S) uint16, the codes of the tokens: nearest entries, stage by stage."""
        codes, _ = self._approximated("Codebook.encode", features)
        return codes

    def decode(self, codes: Tensor, level: Tensor) -> Tensor:
        """Codes (N, G, S) of tokens of these levels (N,) → rows (N, W), float32."""
        _, groups, stages, count, _ = self.entries.shape
        check_shapes("Codebook.decode", codes=(codes, f"N {groups} {stages}"), level=(level, "N"))
        index, book = codes.long(), self.book(level)
        if len(index) and int(index.max()) >= count:
            raise ValueError(f"Codebook.decode: codes must be below {count}, got {int(index.max())}")
        group, stage = torch.meshgrid(torch.arange(groups), torch.arange(stages), indexing="ij")
        own = self.entries[book[:, None, None], group, stage, index].float()  # (N, G, S, d)
        return own.sum(2).flatten(1) * self.spread[book] + self.mean[book]

    def error(self, features: TokenFeatures) -> float:
        """The share of the features' variance that codes lose, all parts alike."""
        given, left = self._standardised("Codebook.error", features), self._approximated("Codebook.error", features)[1]
        return float(left.square().mean() / given.square().mean().clamp(min=1e-12))

    def first(self, stages: int) -> Codebook:
        """With the first stages alone: smaller codes, which are the first codes of these."""
        check_count("Codebook.first", "stages", stages, 1, self.entries.shape[2])
        return replace(self, entries=self.entries[:, :, :stages])

    def to(self, device: torch.device | str) -> Codebook:
        """The same codebook on another device."""
        moved = {name: getattr(self, name).to(device) for name in _TENSORS}
        return replace(self, **moved)

    def check_model(self, function: str, adapter: Adapter) -> None:
        """ValueError unless these are codes of the adapter's model."""
        if (own := tower_digest(adapter)) != self.digest:
            name = getattr(adapter.config, "name_or_path", "") or adapter.config.model_type
            raise ValueError(
                f"{function}: codebook must be fitted to this model, {name} (weights {own[:12]}), "
                f"got one of {self.model} (weights {self.digest[:12]})"
            )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a safetensors file. It replaces an earlier one when it is complete."""
        tensors = {name: getattr(self, name) for name in _TENSORS}
        about = {"format": _FORMAT, "model": self.model, "digest": self.digest}
        whole = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        data = optional("Codebook.save", "safetensors.torch").save(whole, about)
        path = Path(path)
        partial = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            partial.write_bytes(data)
            os.replace(partial, path)
        finally:
            partial.unlink(missing_ok=True)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, device: torch.device | str = "cpu") -> Codebook:
        """Read what `save` wrote."""
        safetensors = optional("Codebook.load", "safetensors")
        if not Path(path).is_file():
            raise FileNotFoundError(f"Codebook.load: no such file: {path}")
        try:
            with safetensors.safe_open(path, "pt", device=str(device)) as file:
                about = file.metadata() or {}
                if about.get("format") != _FORMAT:
                    raise ValueError(f"its format is {about.get('format')!r}")
                tensors = {name: file.get_tensor(name) for name in _TENSORS}
                return cls(**tensors, model=about.get("model", ""), digest=about.get("digest", ""))
        except (ValueError, safetensors.SafetensorError) as error:
            raise ValueError(f"Codebook.load: path must be a file from Codebook.save, got {path}: {error}") from None

    def _approximated(self, function: str, features: TokenFeatures) -> tuple[Tensor, Tensor]:
        """Codes (N, G, S), and what they leave of the standardised rows, (N, W)."""
        _, groups, stages, _, wide = self.entries.shape
        left, book = self._standardised(function, features), self.book(features.level)
        codes = torch.zeros(len(features), groups, stages, dtype=torch.int64, device=left.device)
        for number in book.unique().tolist():
            own = book == number
            for group in range(groups):
                part = left[own, group * wide : (group + 1) * wide]
                for stage in range(stages):
                    entries = self.entries[number, group, stage].float()
                    index = nearest(part, entries)
                    codes[own, group, stage] = index
                    part = part - entries[index]
                left[own, group * wide : (group + 1) * wide] = part
        return codes.to(torch.uint16), left

    def _standardised(self, function: str, features: TokenFeatures) -> Tensor:
        check_shapes(function, rows=(features.rows, f"N {self.width}"))
        book = self.book(features.level)
        return (features.rows.float() - self.mean[book]) / self.spread[book]


def nearest(rows: Tensor, entries: Tensor) -> Tensor:
    """(N,): the index of the nearest entry of each row, the first of equal ones.

    rows:    (N, D)
    entries: (K, D), on the same device
    """
    half = 0.5 * entries.square().sum(1)  # the row's own length does not change the order
    step = max(1, _AT_ONCE // len(entries))
    parts = [torch.addmm(half, part, entries.T, alpha=-1).argmin(1) for part in rows.split(step)]
    return torch.cat(parts or [rows.new_zeros(0).long()])


def tower_digest(adapter: Adapter) -> str:
    """A digest of the first numbers of every weight before the language model, in bfloat16: one for any precision."""
    model: Any = adapter.model
    behind = {id(weight) for weight in adapter.language_of(model).parameters()}
    if (head := model.get_output_embeddings()) is not None:
        behind |= {id(weight) for weight in head.parameters()}
    found = hashlib.sha256()
    for name, weight in sorted(model.named_parameters()):
        if id(weight) not in behind:
            first = weight.detach().flatten()[:_FIRST].bfloat16().float().cpu()
            found.update(name.encode() + first.numpy().tobytes())
    return found.hexdigest()

"""Relevance from image-text embeddings (CLIP or SigLIP): cosines of image features with the question's embedding."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from texturevlm.channels.embedding import DenseEncoder, Projection, embed
from texturevlm.channels.registry import EMBEDDING_LAYERS
from texturevlm.relevance.maps import ImageMaps
from texturevlm.relevance.scorer import question_text
from texturevlm.scout.question import Question
from texturevlm.types import Texture

SHARPNESS = 10.0  # of the softmax over cosines


class EmbeddingScorer:
    """encoder: a DenseEncoder; projection: what `texturevlm fit-pca` saved for it."""

    name, description, capturable = "embedding", "embeddings", False

    def __init__(self, encoder: DenseEncoder | None = None, projection: Projection | None = None) -> None:
        if encoder is None or projection is None:
            raise ValueError(
                "choose_tokens: relevance 'embedding' needs models: "
                "relevance=tv.SCORERS['embedding'](encoder, projection), "
                "a DenseEncoder and a Projection of texturevlm.channels"
            )
        self.encoder, self.projection = encoder, projection

    def prepare(self, texture: Texture) -> tuple[Tensor, str]:
        """Features (B, 16, h', w') and how to resize them: the texture's embedding channels, else the encoder's."""
        if set(EMBEDDING_LAYERS) <= set(texture.names):
            layers = [texture.names.index(name) for name in EMBEDDING_LAYERS]
            return texture.levels[0][:, layers].float(), "area"
        return embed(texture.levels[0][:, :3], self.encoder, self.projection), "bilinear"

    def score(
        self, prepared: tuple[Tensor, str], question: str | Question, maps: ImageMaps
    ) -> tuple[Tensor | None, ImageMaps]:
        """A softmax over the cells' cosines, summing to 1."""
        text = question_text(self.name, question)
        if not text.strip():
            return None, maps
        features, mode = prepared
        resized = functional.interpolate(features, maps.grid, mode=mode)
        cosine = self.projection.similarity(resized, self.encoder.text(text).to(resized.device))
        return (SHARPNESS * cosine).flatten(1).softmax(1).view_as(cosine), maps

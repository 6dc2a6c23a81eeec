"""Choosing tokens asks for no more than it needs."""

import torch

from texturevlm.ask import choose
from texturevlm.ask.prepared import PreparedImage

OPTIONS = {"budget": 8, "allocator": "auto", "relevance": "scout"}


def test_the_chance_of_an_image_is_asked_for_among_several_only(monkeypatch):
    """It reads the scout's answer back, for which a GPU would be waited for."""
    asked, chance = [], PreparedImage.chance

    def counted(self, question, relevance):
        asked.append(question)
        return chance(self, question, relevance)

    monkeypatch.setattr(PreparedImage, "chance", counted)
    images = [PreparedImage(torch.rand(3, 96, 96), patch=32, device=torch.device("cpu")) for _ in range(2)]
    assert len(choose.choose(images[:1], "where?", **OPTIONS)) == 1 and asked == []
    assert len(choose.choose(images, "where?", **OPTIONS)) == 2 and asked == ["where?"] * 2

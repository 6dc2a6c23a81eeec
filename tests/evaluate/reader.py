"""A tiny model with the reader's architecture and letters, random weights."""

from functools import cache

import torch

from tests.train.test_reader import small_network
from texturevlm.ask import VLM
from texturevlm.ask.pretrained import PlainProcessor
from texturevlm_lab.train.reader.alphabet import make_tokenizer
from texturevlm_lab.train.reader.network import make_image_processor, save_folder


def grown_network():
    """Weights large enough that it says something else to every prompt."""
    torch.manual_seed(0)
    network = small_network().eval()
    with torch.no_grad():
        for name, weights in network.named_parameters():
            if weights.dim() > 1:
                weights.normal_(0, 0.6 if "embed" in name else 0.15)
    return network


@cache
def model():
    """It, ready to be asked."""
    return VLM(grown_network(), PlainProcessor(make_tokenizer(), make_image_processor()))


def saved(folder):
    """It, in a folder for `load_vlm`."""
    save_folder(grown_network(), folder)
    return folder

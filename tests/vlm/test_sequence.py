"""A prompt while tokens leave it or merge: what each token carries with it."""

import torch

from texturevlm_lab.rivals import Reduction
from texturevlm_lab.rivals.hooks.sequence import Sequence


def prompt():
    """Text, four visual tokens, text; one layer of DeepStack; rows and columns as positions. Two samples."""
    hidden = torch.arange(12.0).view(2, 6, 1)
    position = 10 * torch.arange(6).view(1, 6, 1).expand(2, 6, 3) + torch.arange(3)
    visual = torch.tensor([[False, True, True, True, True, False]]).expand(2, -1)
    deepstack = 100.0 * torch.arange(1, 9)[:, None]  # of the visual tokens, sample by sample
    return Sequence.of(hidden, position, torch.ones_like(visual), visual, torch.zeros_like(visual), [deepstack])


def test_merged_tokens_carry_the_mean_of_hidden_states_and_of_deepstack_and_stay_at_their_target():
    first = Reduction.merging(torch.tensor([1, 3]), torch.tensor([1, 1, 3, 3]))
    second = Reduction.keeping(torch.tensor([0, 3]), 4)
    found = prompt().reduced([first, second])
    assert found.hidden[..., 0].tolist() == [[0, 1.5, 3.5, 5], [6, 7, 10, 11]]
    assert found.deepstack[0][..., 0].tolist() == [[0, 150, 350, 0], [0, 500, 800, 0]]
    assert found.position[0, :, 0].tolist() == [0, 20, 40, 50]  # M-RoPE: of the targets; text does not move
    assert found.position[1, :, 2].tolist() == [2, 12, 42, 52]
    assert found.size.tolist() == [[1, 2, 2, 1], [1, 1, 1, 1]]
    assert found.token[0, 1:3].tolist() == [1, 3]
    again = found.reduced([Reduction.merging(torch.tensor([0]), torch.tensor([0, 0]))] * 2)
    assert again.hidden[:, 1, 0].tolist() == [2.5, 8.5]
    assert again.deepstack[0][:, 1, 0].tolist() == [250, 650]
    assert again.size[:, 1].tolist() == [4, 2] and again.position[0, 1].tolist() == [20, 21, 22]


def test_samples_that_lose_differently_are_padded_on_the_left():
    whole, less = Reduction.keeping(torch.arange(4), 4), Reduction.merging(torch.tensor([2]), torch.full((4,), 2))
    found = prompt().reduced([whole, less])
    assert found.live.tolist() == [[True] * 6, [False] * 3 + [True] * 3]
    assert found.hidden[1, 3:, 0].tolist() == [6, 8.5, 11]
    assert found.deepstack[0][1, :, 0].tolist() == [0, 0, 0, 0, 650, 0]
    assert found.size[1].tolist() == [1, 1, 1, 1, 4, 1]
    assert found.restored(6)[1, :, 0].tolist() == [6, 0, 0, 8.5, 0, 11]

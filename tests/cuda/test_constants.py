"""Tensors that a captured graph reads are never freed, however many others are made after them."""

import gc
import weakref

import torch

from texturevlm.allocate.density import _plan
from texturevlm.cuda.kernel import device_constant
from texturevlm_lab.allocators import select

CPU = torch.device("cpu")


def test_the_same_values_are_one_tensor():
    one = device_constant([1, 2], torch.int32, CPU)
    assert one is device_constant((1, 2), torch.int32, CPU) and one.tolist() == [1, 2] and one.dtype == torch.int32
    assert one is not device_constant([1, 2], torch.int64, CPU)
    assert device_constant([(1, 2), (3, 4)], torch.int64, CPU).shape == (2, 2)


def kept(make, count):
    """Whether the tensors of the first call live on after `count` others."""
    first = [weakref.ref(tensor) for tensor in make(0)]
    for index in range(1, count):
        make(index)
    gc.collect()
    return bool(first) and all(one() is not None for one in first)


def test_a_cutting_plan_is_kept():
    assert kept(lambda index: [tensor for pair in _plan(2 + index, CPU) for tensor in pair], 80)


def test_the_numbers_of_a_selection_are_kept():
    def numbers(index):
        todo = select.pack_plans((select.Plan(1, 1 + index, (select.Stage(2, 2, 1),)),), 1, (64, 64), 8)
        return select.numbers_of(todo, CPU)

    assert kept(numbers, 300)

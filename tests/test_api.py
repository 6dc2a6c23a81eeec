"""A snapshot of the public API: a change here is a change for every user, so it must be meant."""

import inspect

import texturevlm as tv

NAMES = [
    "Allocation",
    "Balance",
    "Patches",
    "Relevance",
    "Texture",
    "attach",
    "choose_tokens",
    "compile",
    "foveate",
    "generate_mipmaps",
    "load_vlm",
    "ops",
    "rebuild",
    "resized",
    "sample",
    "sample_foveated",
]
OPERATIONS = {
    "gaussian_pyramid": "image, *, levels",
    "laplacian_pyramid": "image, *, levels",
    "laplacian_reconstruct": "bands",
    "lookup": "levels, points, lod, *, nearest, backend",
    "lookup_grad": "levels, points, ddx, ddy, *, max_anisotropy, nearest, backend",
    "mipmap": "image, *, levels, reduce, backend",
    "sample_patches": "levels, centre, ddx, ddy, *, patch, max_anisotropy, nearest, backend",
    "steerable_pyramid": "image, *, scales, orientations",
    "steerable_reconstruct": "pyramid",
    "update_region": "levels, boxes, *, reduce, backend",
}
CLASSES = {"DeviceTexture": "levels, *, half, pack, nearest"}
FUNCTIONS = {
    "attach": "model, processor, *, budget, allocator, relevance, captured",
    "compile": "size, budget, allocator, *, patch, relevance, batch, device, graphs, options",
    "choose_tokens": "texture, question, *, budget, patch, allocator, relevance, balance, options",
    "foveate": "size, *, fixation, budget, patch, M0, e0, device",
    "generate_mipmaps": "image, *, levels",
    "load_vlm": "model, *, budget, device, dtype, allocator, relevance, captured",
    "rebuild": "texture, allocation, *, box, grey",
    "resized": "texture, *, budget, patch, box",
    "sample": "texture, allocation, *, backend",
    "sample_foveated": "texture, *, fixation, budget, patch, M0, e0, backend",
}


def spelled(function) -> str:
    words, options = [], False
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not options:
            words.append("*")
            options = True
        words.append(parameter.name)
    return ", ".join(words)


def test_public_names():
    assert sorted(tv.__all__) == sorted(NAMES)
    assert all(hasattr(tv, name) for name in NAMES)


def test_operations():
    assert {name: spelled(getattr(tv.ops, name)) for name in tv.ops.__all__} == OPERATIONS | CLASSES


def test_functions():
    assert {name: spelled(getattr(tv, name)) for name in FUNCTIONS} == FUNCTIONS


def test_every_public_function_states_what_it_does():
    for owner, names in ((tv, FUNCTIONS), (tv.ops, OPERATIONS)):
        for name in names:
            assert inspect.getdoc(getattr(owner, name)), name

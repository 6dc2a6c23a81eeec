"""Hooks by which tokens leave or merge inside a model; the methods themselves are in `texturevlm_lab.rivals`.

`hook.py` has the hook that users ask for, `places.py` what each family lets it do. `reducing.py` runs the language
model between whose layers tokens leave, `tower*.py` are for towers, `decode.py` for the cache while an answer is
written. `scan.py` watches a tower for what methods need, and `captured.py` stands between two CUDA graphs.
"""

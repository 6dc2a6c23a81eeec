"""What makes or judges texturevlm: training, evaluation, benchmarks, published rivals, allocators that lost, studies.

The core finds what is here by entry points (lab/pyproject.toml) and imports nothing of it.
"""

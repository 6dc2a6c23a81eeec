"""Evaluation: data sets, metrics of what tokens deliver, resumable runs over allocators and scorers, and reports."""

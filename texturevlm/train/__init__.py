"""Training: the loop with its checkpoints and logs, the tasks that `texturevlm train` knows, and the data they learn from."""

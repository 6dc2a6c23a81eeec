"""Training: the loop with checkpoints and logs, the tasks that `texturevlm train` knows, and the data they use."""

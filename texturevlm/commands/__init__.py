"""The subcommands of the command line, one file per command: `add_…` declares the options, the function below it runs.

Nothing here imports torch before a command runs, so that --help and the refusal of bad options are immediate.
"""

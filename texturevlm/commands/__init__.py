"""The command line's subcommands, one file each: `add_…` says what it takes, the function below it does the work."""

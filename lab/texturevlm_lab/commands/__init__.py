"""The subcommands that the lab adds to the command line of texturevlm, one file per command."""

"""The subcommands: each file is one, by its name, and has its Typer app in `app`."""

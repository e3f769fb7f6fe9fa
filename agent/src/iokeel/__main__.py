"""Runs the command as `python -m iokeel`."""

from iokeel.cli.main import main

main()

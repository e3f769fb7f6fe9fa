"""The command `iokeel agent`."""

from __future__ import annotations

import asyncio
import logging

import typer

from iokeel.cli.options import ConfigOption
from iokeel.config.load import load

app = typer.Typer(add_completion=False)


@app.command()
def agent(config: ConfigOption = None) -> None:
    """Run the agent until SIGTERM. Then every drive is left at its policy's static limit."""
    settings = load(config)
    from iokeel.daemon import run_agent  # after load, so that a wrong configuration is told at once

    logging.basicConfig(
        level=settings.agent.log_level.upper(), format="%(levelname)s %(name)s: %(message)s"
    )
    asyncio.run(run_agent(settings))

"""The command `iokeel agent`."""

from __future__ import annotations

import asyncio
import logging
from typing import Annotated

import typer

from iokeel.cli.options import ConfigOption
from iokeel.cli.output import complain, say
from iokeel.config.last import load_or_last
from iokeel.config.load import load
from iokeel.words.log_lines import log_to_stderr

app = typer.Typer(add_completion=False)


@app.command()
def agent(
    config: ConfigOption = None,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Only check the configuration, the socket's place, the files that it names for TLS"
            " and passwords, and that no later iokeel wrote the agent's state.",
        ),
    ] = False,
    release: Annotated[
        bool,
        typer.Option(
            "--release",
            help="With the agent stopped: restore the limits and cgroup settings from before it,"
            " and exit.",
        ),
    ] = False,
) -> None:
    """Run the agent until SIGTERM. Then every drive is left at limits that hold without it.

    SIGHUP makes it read the configuration again. A bad one changes nothing. If it is bad at the
    start, the agent goes by the last good one.
    """
    settings, refused = (load(config), None) if check else load_or_last(config)
    # After load, so that a wrong configuration shows at once.
    from iokeel.config.rules import rule_complaints
    from iokeel.release import release_all
    from iokeel.report.http import check_socket
    from iokeel.report.promises import config_complaints
    from iokeel.service import run_agent
    from iokeel.store.store import StateStore

    if check:
        for complaint in (*config_complaints(settings), *rule_complaints(settings)):
            complain(str(complaint))
        check_socket(settings.agent.socket)
        StateStore(settings.agent.state_dir).check()
        address, web_config = settings.agent.metrics_address, settings.agent.metrics_web_config
        if address is not None and web_config is not None:
            from iokeel.config.web_file import load_web

            for doubt in load_web(web_config, address).doubts:
                complain(str(doubt))
        if settings.fleet is not None:
            from iokeel.fleet import memory

            memory.check(settings.agent.state_dir)
            access = settings.fleet.access
            access.tls()
            if access.user is not None:
                access.password()
        return

    level = "WARNING" if release else settings.agent.log_level.upper()
    log_to_stderr(level)
    if release:
        if refused is not None:
            logging.getLogger(__name__).warning("goes by the last configuration: %s", refused)
        drives = asyncio.run(release_all(settings))
        say(f"{drives} drives have their former limits again")
    else:
        asyncio.run(run_agent(settings, config, refused))

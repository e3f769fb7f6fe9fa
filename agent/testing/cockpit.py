"""Cockpit's web server with the project's page, for one session on a loopback port."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Self

from testing.agents import IOKEEL, NOBODY, free_port
from testing.waiting import Process, eventually

COCKPIT_WS = "/usr/lib/cockpit/cockpit-ws"
Popen = Callable[..., Process]


class Cockpit:
    """A cockpit-ws whose only session is that of root, or of a user without rights.

    A context manager. page: the folder that the page was built into; None: it is installed, by its
    package. agent_socket: the agent's, which the page is told by Cockpit's own way, an override of
    its manifest. popen: starts a process where the agent runs. programs: a folder whose programs
    the session takes first. reader: the session is the user nobody's.
    """

    def __init__(
        self,
        folder: Path,
        page: Path | None,
        agent_socket: Path,
        *,
        popen: Popen = subprocess.Popen,
        programs: Path = IOKEEL.parent,
        reader: bool = False,
    ) -> None:
        self._popen = popen
        self.programs = programs
        self.port = free_port()
        data, config = folder / "share/cockpit", folder / "config/cockpit"
        data.mkdir(parents=True)
        config.mkdir(parents=True)
        if page is not None:
            shutil.copytree(page, data / "iokeel")
        override = {"config": {"socket": str(agent_socket)}}
        (config / "iokeel.override.json").write_text(json.dumps(override))
        bridge = folder / "bridge"
        become = f"setpriv --reuid={NOBODY} --regid={NOBODY} --clear-groups " if reader else ""
        bridge.write_text(f"#!/bin/sh\nexec {become}cockpit-bridge\n")
        bridge.chmod(0o755)
        self._environment = {
            **os.environ,
            "HOME": str(folder),
            "LC_ALL": "C.UTF-8",
            "PATH": f"{programs}:{IOKEEL.parent}:{os.environ['PATH']}",
            "XDG_DATA_HOME": str(folder / "share"),
            "XDG_CONFIG_DIRS": str(folder / "config"),
        }
        self._bridge = bridge
        self._process: Process | None = None

    @property
    def url(self) -> str:
        """The page's address, without Cockpit's own frame around it."""
        return f"http://127.0.0.1:{self.port}/cockpit/@localhost/iokeel/index.html"

    @property
    def shell_url(self) -> str:
        """The page's address in Cockpit's own frame."""
        return f"http://127.0.0.1:{self.port}/iokeel"

    def __enter__(self) -> Self:
        self._process = self._popen(
            [COCKPIT_WS, "--no-tls", f"--port={self.port}", "--address=127.0.0.1",
             f"--local-session={self._bridge}"],
            env=self._environment, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        eventually(self._listens, what="cockpit-ws listens", process=self._process)
        return self

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()

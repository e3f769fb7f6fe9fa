"""How a script that starts programs ends."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Sequence
from subprocess import SubprocessError
from typing import NoReturn

from testing.lab.guests.qga import AgentError


def end_with(main: Callable[[Sequence[str]], int]) -> NoReturn:
    """Run a script's main function, and exit: 2 if the run could not be made, 130 by a signal."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        print("\nInterrupted. Everything that was started has ended.")
        sys.exit(130)
    except (AgentError, AssertionError, OSError, RuntimeError, SubprocessError) as error:
        print(f"The run could not be made: {error}", file=sys.stderr)
        sys.exit(2)

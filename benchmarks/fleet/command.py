"""How a script of this folder ends."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Sequence
from subprocess import SubprocessError
from typing import NoReturn


def end_with(main: Callable[[Sequence[str]], int]) -> NoReturn:
    """Run a script's main function, and exit: 2 if the run could not be made, 130 by a signal."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        sys.exit(main(sys.argv[1:]))
    except (AssertionError, OSError, RuntimeError, SubprocessError) as error:
        print(f"benchmarks.fleet: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)

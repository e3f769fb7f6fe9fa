"""An agent that breaks one promise to ordinary hosts, to show that a run of field finds it.

`make field BROKEN=...` runs it:

    strangers   what drives without a policy do counts against the capacity by its price, whatever
                the device did for it
    waits       a drive's waits for its own throttle count as the storage's latency
    bounds      VMs' cgroups are bounded by what their limits let pass, and by nothing that an image
                adds below QEMU's throttle
    jobs        block jobs run within their guest's bound

Nothing of this is in the agent's own package: this file runs the agent's command with functions
replaced. The compiled law can't be changed so, hence its sources are loaded.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from importlib.machinery import SOURCE_SUFFIXES, FileFinder, SourceFileLoader
from typing import Any, Literal, get_args

Break = Literal["strangers", "waits", "bounds", "jobs"]
BREAKS: tuple[Break, ...] = get_args(Break)


def load_sources() -> None:
    """Have this process load the law's sources, not what is compiled of them."""
    finder = FileFinder.path_hook((SourceFileLoader, SOURCE_SUFFIXES))

    def of_the_law(path: str) -> Any:
        if "/iokeel/core" not in path:
            raise ImportError  # whoever comes next finds it
        return finder(path)

    sys.path_hooks.insert(0, of_the_law)
    sys.path_importer_cache.clear()


def replace(name: str, module: Any, by: Callable[..., Any]) -> None:
    """Replace a function of a module, also where it was imported from there."""
    old = getattr(module, name)
    for other in [each for key, each in sys.modules.items() if key.startswith("iokeel.")]:
        if getattr(other, name, None) is old:
            setattr(other, name, by)


def break_agent(how: Break) -> None:
    """Break the agent of this process."""
    {"strangers": _strangers, "waits": _waits, "bounds": _bounds, "jobs": _jobs}[how]()


def _strangers() -> None:
    from iokeel.core.correct import capacity
    from iokeel.core.divide import everything as allocate
    from iokeel.core.divide import storage as one_storage

    usable = one_storage._usable

    def priced(*words: Any) -> Any:
        return words[4]

    def always(*_: Any) -> bool:
        return True

    def less_strangers(one: Any, *words: Any) -> float:
        configured = one.seen.policy.capacity
        return usable(one, *words) if configured is None else max(0.0, configured - one.strangers)

    replace("_strangers", allocate, priced)
    replace("is_full", capacity, always)
    replace("_usable", one_storage, less_strangers)


def _waits() -> None:
    from iokeel.core.measure import storage as latency
    from iokeel.core.values.storage import StorageActivity

    def with_waits(known: Any, activity: Any) -> Any:
        did = known.measured.rates
        return None if did is None else did.mean_device_latency_s

    def of_the_guests(seen: Any, before: Any, drives: Any, vms: Any) -> Any:
        times = latency._times_of(drives)
        if times is None:
            return None
        queue = times.raw_iops * times.latency_s
        return StorageActivity(
            times.elapsed_s, times.raw_iops, times.latency_s, min(1.0, queue), queue
        )

    replace("device_latency_s", latency, with_waits)
    replace("activity_of", latency, of_the_guests)


def _bounds() -> None:
    _leave_out("added")


def _jobs() -> None:
    # A bound that is wider, or lifted, for another reason would leave room for a job, too.
    _leave_out("jobs", "added", "free")


def _leave_out(*names: str) -> None:
    """Have cgroups' bounds made without some of what they allow for."""
    from iokeel.core.enforce import backstop

    vm_orders = backstop.vm_orders
    signature = inspect.signature(vm_orders)
    assert set(names) <= signature.parameters.keys(), "another name breaks nothing"

    def without(*words: Any, **named: Any) -> Any:
        given = signature.bind(*words, **named)
        for name in names:
            given.arguments.pop(name, None)
        return vm_orders(*given.args, **given.kwargs)

    replace("vm_orders", backstop, without)


if __name__ == "__main__":
    (how,) = (name for name in BREAKS if name == sys.argv[1])
    del sys.argv[1]
    load_sources()
    from iokeel.cli.main import main

    break_agent(how)
    main()

"""What do 10,000 rules cost: to load, and for a guest whose XML has changed?

    python -m benchmarks.agent_cost.rules [--rules N...] [--repeats N]

Rules give a class and a tenant by the flavor of a guest, which they ask for by exact texts, by a
beginning of their own with a wildcard after it, or by a wildcard before it. The guest is one of
Nova's with two disks, and fits the last rule. Times are CPU times of this process
(time.process_time).

    load_ms    to parse agent.toml and make the rules, as at a start or a reload
    check_ms   to find rules that can never count, as `iokeel agent --check` does besides
    first_ms   more for the first guest after that: patterns are prepared for comparisons
    guest_us   to read the policy of a guest whose XML has changed: facts, rules, and what they give
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from benchmarks import result_file
from benchmarks.result_file import Machine
from benchmarks.spread import Spread
from iokeel.config.load import parse
from iokeel.config.rules import rule_complaints
from iokeel.config.settings import Config
from iokeel.core.values.policy import DomainPolicy
from iokeel.hypervisors.policies import Policies
from iokeel.hypervisors.source import SourceNews
from iokeel.libvirt_xml.domain import parse_domain
from tests.unit.rules import platforms

# What a rule asks a flavor for, and the flavor that fits, both by the rule's number.
KINDS: dict[str, tuple[str, str]] = {
    "exact texts": ("io{}.large", "io{}.large"),
    "own beginnings": ("io{}.*", "io{}.large"),
    "wildcards in front": ("*.io{}", "large.io{}"),
}
_RULE = """
[[rules]]
name = "rule-{number}"
when = {{"nova.flavor" = "{asked}"}}
tenant = "{{nova.project}}"
class = "gold"
"""
_GUESTS = 50


@dataclass(frozen=True)
class Measured:
    """The figures of so many rules of a kind; rules 0: of a guest without rules."""

    rules: int
    asks_for: str
    load_ms: Spread
    check_ms: Spread
    first_ms: Spread
    guest_us: Spread


@dataclass
class Result:
    """A result file."""

    question: str
    date: str
    revision: str | None
    machine: Machine
    cpu: str
    repeats: int
    results: list[Measured] = field(default_factory=list)


def cpu_s(do: Callable[[], object]) -> float:
    """Return the CPU time that a call takes."""
    began = time.process_time()
    do()
    return time.process_time() - began


class Guest:
    """A guest of Nova's that a host's rules are asked about again and again."""

    def __init__(self, config: Config, flavor: str) -> None:
        self._policies = Policies(config.classes, {}, SourceNews())
        self._policies.rules = config.rules
        self._text = platforms.nova(flavor)
        self._xml = parse_domain(self._text)
        self._changes = 0

    def read(self) -> None:
        """Read its policy, after a change of its XML."""
        self._changes += 1
        policy, error = self._policies.read(self._xml, f"{self._text}<!--{self._changes}-->", None)
        assert error is None
        if self._policies.rules:
            assert isinstance(policy, DomainPolicy)
            assert policy.tenant == platforms.PROJECT


def measure(rules: int, kind: str, repeats: int) -> Measured:
    """Measure so many rules of a kind."""
    asked, flavor = KINDS[kind]
    tables = [_RULE.format(number=n, asked=asked.format(n)) for n in range(rules)]
    text = "".join(tables).encode()
    figures: list[tuple[float, ...]] = []
    for _ in range(repeats):
        config = Config()

        def load() -> None:
            nonlocal config
            config = parse(text, "agent.toml")

        load_s = cpu_s(load)
        check_s = cpu_s(lambda: [*rule_complaints(config)])  # noqa: B023
        guest = Guest(config, flavor.format(rules - 1))
        first_s = cpu_s(guest.read)
        guest_s = median(cpu_s(guest.read) for _ in range(_GUESTS))
        figures.append((1e3 * load_s, 1e3 * check_s, 1e3 * (first_s - guest_s), 1e6 * guest_s))
    columns = zip(*figures, strict=True)
    spreads = [Spread.of([round(each, 2) for each in column]) for column in columns]
    return Measured(rules, kind if rules else "", *spreads)


def main() -> None:
    """Measure each number of rules of each kind, and a guest without any."""
    parser = argparse.ArgumentParser(description=result_file.question(__doc__))
    parser.add_argument("--rules", type=int, nargs="*", default=[100, 1000, 10_000])
    parser.add_argument("--repeats", type=int, default=5)
    output = result_file.RESULTS / "rules.json"
    parser.add_argument("--output", type=Path, default=output)
    options = parser.parse_args()
    found = Result(
        question=result_file.question(__doc__),
        date=result_file.now(),
        revision=result_file.revision(),
        machine=Machine.this(),
        cpu=result_file.cpu_model(),
        repeats=options.repeats,
    )
    wanted = [(0, next(iter(KINDS)))] + [(n, kind) for n in options.rules for kind in KINDS]
    for rules, kind in wanted:
        one = measure(rules, kind, options.repeats)
        found.results.append(one)
        print(
            f"{rules} rules, {kind}: load {one.load_ms} ms, check {one.check_ms} ms,"
            f" first {one.first_ms} ms, guest {one.guest_us} us"
        )
    result_file.write(options.output, found, indent=2)


if __name__ == "__main__":
    main()

"""docs/api.md and docs/openapi.json are what the code says, and readers can rely on them."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from typing import Any, cast

import jsonschema
import pytest
from typer.core import TyperGroup
from typer.main import get_command

from iokeel.cli.main import app
from testing.api_doc import COMMANDS, PAGE, SCHEMA, breaks, openapi, page, text


def test_the_files_are_up_to_date() -> None:
    assert SCHEMA.read_text() == text(openapi()), "run `make api-doc`"
    assert PAGE.read_text() == page(openapi()), "run `make api-doc`"


def test_each_schema_is_one() -> None:
    for schema in json.loads(SCHEMA.read_text())["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)


def with_json(command: Any, *path: str) -> Iterator[str]:
    """Yield a command and its subcommands that have --json, by name."""
    if any("--json" in parameter.opts for parameter in command.params):
        yield " ".join(path)
    if isinstance(command, TyperGroup):
        for name in command.commands:
            yield from with_json(command.get_command(cast(Any, None), name), *path, name)


def test_every_subcommand_with_json_is_documented_and_no_other() -> None:
    assert {*with_json(get_command(app))} == COMMANDS.keys()


def drive(document: Any) -> dict[str, Any]:
    found: dict[str, Any] = document["components"]["schemas"]["DriveReport"]
    return found


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda d: drive(d)["properties"].pop("domain"), "DriveReport.domain has gone"),
        (
            lambda d: drive(d)["properties"].update(errors={"type": "string"}),
            "DriveReport.errors has another type",
        ),
        (lambda d: drive(d)["required"].remove("errors"), "DriveReport.errors may be missing now"),
        (lambda d: d["paths"].pop("/v1/why"), "/v1/why has gone"),
        (lambda d: d["x-iokeel-commands"].pop("why"), "iokeel why --json has gone"),
        (lambda d: drive(d)["properties"].update(new={"type": "string"}), None),
        (lambda d: drive(d).update(description="another"), None),
        (lambda d: d["paths"].update({"/v1/new": {}}), None),
    ],
)
def test_what_readers_would_miss_takes_another_version(
    change: Callable[[Any], object], said: str | None
) -> None:
    old = openapi()
    new = copy.deepcopy(old)
    change(new)
    assert breaks(old, new) == ([] if said is None else [said])

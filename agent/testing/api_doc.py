"""docs/openapi.json and docs/api.md, made from the records of the code: `make api-doc`."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Mapping
from dataclasses import fields
from functools import cache
from http import HTTPStatus
from typing import NamedTuple, TypeAlias, TypedDict, get_type_hints

import jsonschema
import msgspec

from iokeel.calibrate.output import CalibrationReport, Conditions
from iokeel.cli.commands.curve import Row
from iokeel.cli.commands.policy import PolicyChecked, RunningChecked
from iokeel.cli.fleet_tables import (
    BudgetChanges,
    BudgetShares,
    FleetStatus,
    HostForgotten,
    HostRow,
    StorageRow,
    TenantRow,
)
from iokeel.cli.tables import TenantSums
from iokeel.core.values.policy import MOST_IOPS
from iokeel.report.http import ROUTES, HookMessage, Route
from iokeel.report.records import (
    API_VERSION,
    SERIES,
    SPAN_S,
    WEEK_S,
    ChangeReport,
    DriveReport,
    GuestReport,
    OneHistory,
    RecommendReport,
    Refusal,
    RulesReport,
    StorageReport,
    VmReport,
    WeeksReport,
)
from testing.lab.host import PROJECT

PAGE, SCHEMA = PROJECT / "docs/api.md", PROJECT / "docs/openapi.json"
_REF = "#/components/schemas/{name}"
Json: TypeAlias = dict[str, object]


class Parameter(NamedTuple):
    """A parameter of a path's query. schema: JSON Schema's."""

    name: str
    about: str
    schema: Json
    required: bool = False


_DOMAIN = Parameter("domain", "The VM's name.", {"type": "string"}, required=True)
_TARGET = Parameter("target", "The drive's name in it; left out: all.", {"type": "string"})
_SECONDS = Parameter(
    "seconds",
    f"How far back; left out: {WEEK_S}.",
    {"type": "integer", "minimum": 1, "maximum": MOST_IOPS},
)
PARAMETERS: Mapping[str, tuple[Parameter, ...]] = {
    "/v1/why": (_DOMAIN, _TARGET),
    "/v1/policy": (_DOMAIN,),
    "/v1/history": (
        _DOMAIN._replace(about="The VM's name; left out: all VMs.", required=False),
        _TARGET,
        Parameter(
            "seconds",
            f"How far back; left out: {SPAN_S}.",
            {"type": "number", "exclusiveMinimum": 0, "maximum": SPAN_S},
        ),
        Parameter(
            "series",
            "Only these; may be given several times.",
            {"type": "array", "items": {"enum": [*SERIES]}},
        ),
    ),
    "/v1/report": (_SECONDS,),
    "/v1/recommend": (
        _DOMAIN._replace(
            about="Only this VM; may be given several times; left out: all.", required=False
        ),
        _SECONDS,
        Parameter(
            "limit",
            "Only this limit, in normalized iops; left out: those of the classes.",
            {"type": "integer", "minimum": 1, "maximum": MOST_IOPS},
        ),
    ),
}
#: What is sent to a path: its content type and its type, and what it is.
BODIES: Mapping[str, tuple[str, object, str]] = {
    "/v1/policy": ("application/xml", str, "A domain, or the policy element alone."),
    "/v1/hook": ("application/json", HookMessage, ""),
}
#: The statuses of answers that are no success, each with a Refusal.
REFUSALS: Mapping[str, tuple[int, ...]] = {
    "/v1/why": (404,),
    "/v1/history": (400, 404),
    "/v1/recommend": (400, 404),
    "/v1/report": (400, 404),
    "/v1/policy": (404,),
    "/v1/hook": (400, 403),
}
CALIBRATION = msgspec.defstruct(
    "Calibration",
    [
        *(
            (field.name, get_type_hints(of)[field.name])
            for of in (Conditions, CalibrationReport)
            for field in fields(of)
        ),
        ("config", str),
    ],
    namespace={"__doc__": "A calibration of a storage. config: its table of agent.toml."},
)


class FleetChange(TypedDict):
    """A change that an operator has made. at: ISO 8601."""

    at: str
    by: str
    what: str


#: What each subcommand prints with --json: one of these.
COMMANDS: Mapping[str, tuple[object, ...]] = {
    "calibrate": (CALIBRATION,),
    "curve table": (list[Row],),
    "fleet forget": (HostForgotten,),
    "fleet history": (list[FleetChange],),
    "fleet hosts": (list[HostRow],),
    "fleet import": (BudgetChanges,),
    "fleet status": (FleetStatus,),
    "fleet storage remove": (BudgetChanges,),
    "fleet storage set": (BudgetChanges,),
    "fleet storages": (list[StorageRow],),
    "fleet tenant remove": (BudgetChanges,),
    "fleet tenant set": (BudgetChanges,),
    "fleet tenants": (list[TenantRow],),
    "fleet why": (list[BudgetShares],),
    "history": (OneHistory,),
    "policy check": (PolicyChecked, RunningChecked),
    "recommend": (RecommendReport,),
    "report": (WeeksReport,),
    "rules": (RulesReport,),
    "rules diff": (list[ChangeReport],),
    "rules explain": (GuestReport,),
    "stats": (list[VmReport], list[DriveReport], list[StorageReport], list[TenantSums]),
    "why": (dict[str, list[str]],),
}
_HEAD = """\
# API

<!-- Made by `make api-doc` from the code's records. Don't edit it. -->

The agent answers HTTP on its UNIX socket, `/run/iokeel/agent.sock`, for root and group `iokeel`:

```console
# curl --unix-socket /run/iokeel/agent.sock http://agent/v1/vms
```

[openapi.json](openapi.json) has all of this for programs, in OpenAPI 3.1. `--json` of each
subcommand prints [the same records](#subcommands). The [page in Cockpit](cockpit.md) uses nothing
else.

## What stays

This is version {version} of the API. `/v1/settings` tells it as `api_version`. While it stays,

- no path, no field and no subcommand's `--json` goes, or changes its type or its meaning;
- new paths and new fields may come, so ignore the ones that you don't know. An older agent lacks
  newer fields; the schema marks these as not required, with the value that a missing one has;
- new words may come in texts, and new names in `binding`, `mode`, `limits_in_force` and `cgroup`;
- the texts of `why`, of errors and of verdicts are for people, and may change.

Whatever breaks this gets another version, whose number is in its paths. An agent that is asked by
another version answers with status 404, the version that it has, and the mend.
`/v1/hook` is for the agent's own hook; it is not for others, and may change with it.

Rates are in normalized I/O operations a second if a name ends with `_iops`, unless it begins with
`raw_`. Times are in seconds (`_s`), sizes in bytes. `null` is "not known" or "none", as the record
says, and never 0. Records call it None, and true and false True and False.
"""


def openapi() -> Json:
    """Return the OpenAPI document."""
    kinds: list[object] = [route.answer for route in ROUTES if route.answer is not None]
    kinds += [kind for alternatives in COMMANDS.values() for kind in alternatives]
    kinds += [Refusal, *(kind for _, kind, _ in BODIES.values())]
    schemas, components = msgspec.json.schema_components(
        kinds, schema_hook=_anything, ref_template=_REF
    )
    of = dict(zip(map(str, kinds), schemas, strict=True))
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "iokeel's agent",
            "version": str(API_VERSION),
            "description": "See api.md for what stays the same.",
        },
        "servers": [{"url": "http://agent", "description": "UNIX socket /run/iokeel/agent.sock"}],
        "paths": {route.path: {route.method.lower(): _operation(route, of)} for route in ROUTES},
        "components": {"schemas": dict(sorted(components.items()))},
        "x-iokeel-commands": {
            name: {"anyOf": [of[str(kind)] for kind in alternatives]}
            for name, alternatives in COMMANDS.items()
        },
    }


def _operation(route: Route, of: Mapping[str, Json]) -> Json:
    summary, _, more = (inspect.getdoc(route.handler) or "").partition("\n\n")
    good: Json = {"text/plain": {"schema": {"type": "string"}}}
    if route.answer is not None:
        good = {"application/json": {"schema": of[str(route.answer)]}}
    refusal: Json = {"application/json": {"schema": of[str(Refusal)]}}
    answers: Json = {"200": {"description": "The answer.", "content": good}}
    for status in (*REFUSALS.get(route.path, ()), 500):
        answers[str(status)] = {"description": HTTPStatus(status).phrase, "content": refusal}
    made: Json = {"summary": summary, "responses": answers}
    if more:
        made["description"] = " ".join(more.split())
    if route.path in PARAMETERS:
        made["parameters"] = [
            {"name": p.name, "in": "query", "required": p.required, "schema": p.schema,
             "description": p.about}
            for p in PARAMETERS[route.path]
        ]  # fmt: skip
    if route.path in BODIES:
        kind, of_it, about = BODIES[route.path]
        body: Json = {"content": {kind: {"schema": of[str(of_it)]}}, "required": True}
        made["requestBody"] = body | ({"description": about} if about else {})
    return made


def command_faults(name: str, value: object) -> list[str]:
    """Return what of a subcommand's --json isn't documented, or not as it is."""
    commands = _document()["x-iokeel-commands"]
    assert isinstance(commands, dict)
    return _faults(commands[name], value)


def answer_faults(path: str, value: object, status: int = 200, method: str = "get") -> list[str]:
    """Return what of an answer isn't documented, or not as it is."""
    paths = _document()["paths"]
    assert isinstance(paths, dict)
    content = paths[path][method]["responses"][str(status)]["content"]
    return _faults(content["application/json"]["schema"], value)


@cache
def _document() -> Json:
    return openapi()


def _faults(schema: Json, value: object) -> list[str]:
    whole = _strict({**schema, "components": _document()["components"]})
    assert isinstance(whole, dict)
    errors = jsonschema.Draft202012Validator(whole).iter_errors(value)
    return [f"{error.json_path}: {error.message[:300]}" for error in errors]


def _strict(schema: object) -> object:
    """Return a schema that refuses fields which it doesn't have, as those for readers don't."""
    if isinstance(schema, list):
        return [_strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: _strict(value) for key, value in schema.items()}
    if made.get("type") == "object" and isinstance(made.get("properties"), dict):
        made["additionalProperties"] = False
    return made


def breaks(old: Json, new: Json) -> list[str]:
    """Return what readers of an old document would miss in a new one of the same version."""
    found = [f"{name} has gone" for name in _gone(old, new, "paths")]
    found += [f"iokeel {name} --json has gone" for name in _gone(old, new, "x-iokeel-commands")]
    was, is_now = _schemas(old), _schemas(new)
    for name, schema in was.items():
        has = is_now.get(name, {})
        properties = has.get("properties", {})
        for field, kind in schema.get("properties", {}).items():
            if field not in properties:
                found.append(f"{name}.{field} has gone")
            elif _type(properties[field]) != _type(kind):
                found.append(f"{name}.{field} has another type")
            elif field in schema.get("required", []) and field not in has.get("required", []):
                found.append(f"{name}.{field} may be missing now")
    return found


def _anything(kind: type) -> Json:
    """Return the schema of a value that may be anything, as in a policy as it is written."""
    assert kind is object
    return {"description": "Any value."}


def _gone(old: Json, new: Json, key: str) -> list[str]:
    there, left = old.get(key), new.get(key)
    assert isinstance(there, dict)
    assert isinstance(left, dict)
    return sorted(there.keys() - left.keys())


def _schemas(document: Json) -> dict[str, dict[str, dict[str, Json]]]:
    components = document["components"]
    assert isinstance(components, dict)
    return dict(components["schemas"])


def _type(schema: Json) -> Json:
    return {key: value for key, value in schema.items() if key not in ("description", "default")}


def page(document: Json) -> str:
    """Return the page."""
    return "\n".join([_HEAD.format(version=API_VERSION), *_paths(), *_commands(document),
                      *_records(document)])  # fmt: skip


def _paths() -> Iterator[str]:
    yield "## Paths"
    yield ""
    yield "| path | answer | |"
    yield "|---|---|---|"
    for route in ROUTES:
        summary = (inspect.getdoc(route.handler) or "").partition("\n")[0]
        answer = "text" if route.answer is None else _named(route.answer)
        yield f"| `{route.method} {route.path}` | {answer} | {summary} |"
    yield ""
    yield "| path | parameter | |"
    yield "|---|---|---|"
    for path, parameters in PARAMETERS.items():
        for each in parameters:
            yield f"| `{path}` | `{each.name}` | {each.about} |"
    yield ""
    yield "Else the status is 400, 403, 404 or 500, and the body a [Refusal](#refusal). An unknown"
    yield "path, a wrong method and a body that is too long are refused without JSON."
    yield ""


def _commands(document: Json) -> Iterator[str]:
    yield "## Subcommands"
    yield ""
    yield "| `iokeel` | prints |"
    yield "|---|---|"
    for name, alternatives in COMMANDS.items():
        yield f"| `{name} --json` | {', or '.join(map(_named, alternatives))} |"
    yield ""


def _records(document: Json) -> Iterator[str]:
    yield "## Records"
    for name, schema in _schemas(document).items():
        yield f"\n### {name}\n"
        yield " ".join(str(schema.get("description", "")).replace("*_", r"\*_").split())
        yield ""
        yield "| field | type |"
        yield "|---|---|"
        for field, kind in schema.get("properties", {}).items():
            yield f"| `{field}` | {_kind(kind)} |"


def _named(kind: object) -> str:
    (schema,), _ = msgspec.json.schema_components([kind], schema_hook=_anything, ref_template=_REF)
    return _kind(schema)


def _kind(schema: object) -> str:
    """Return the type of a value, as a reader of the page needs it."""
    match schema:
        case {"$ref": str(ref)}:
            name = ref.rpartition("/")[2]
            return f"[{name}](#{name.lower()})"
        case {"anyOf": [*kinds]}:
            return " or ".join(map(_kind, kinds))
        case {"type": "array", "prefixItems": [*kinds]}:
            return f"[{', '.join(map(_kind, kinds))}]"
        case {"type": "array", "items": dict(items)}:
            return f"list of {_kind(items)}"
        case {"type": "object", "additionalProperties": dict(values)}:
            return f"map of names to {_kind(values)}"
        case {"type": str(kind)}:
            return kind
    return "anything"


def main() -> None:
    """Write both files. Refuses what breaks readers of the version that is there."""
    new = openapi()
    if SCHEMA.exists():
        old = json.loads(SCHEMA.read_text())
        if old["info"]["version"] == str(API_VERSION) and (found := breaks(old, new)):
            raise SystemExit(f"api-doc: raise API_VERSION, or undo this: {', '.join(found)}")
    SCHEMA.write_text(text(new))
    PAGE.write_text(page(new))


def text(document: Json) -> str:
    """Return the OpenAPI document as its file has it."""
    return json.dumps(document, indent=1) + "\n"


if __name__ == "__main__":
    main()

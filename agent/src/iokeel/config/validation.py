"""Checks the tables and keys of a configuration, and puts their faults into words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import get_args

from pydantic import ValidationError

from iokeel.config.tables import Root, Table
from iokeel.errors import ConfigError
from iokeel.policy_xml.schema import NAME
from iokeel.words.quoting import did_you_mean, shown

_TYPES = {
    "bool_type": ("not true or false", "write true or false, without quotes"),
    "dict_type": ("not a table", "write it as a [table] of its own"),
    "finite_number": ("not a finite number", "write it like 2.5"),
    "float_type": ("not a number", "write it in digits, without quotes"),
    "int_type": ("not a whole number", "write it like 500, without quotes or fraction"),
    "list_type": (
        "not a list",
        'write a curve as [[size, cost], ...], drives as ["VM/DRIVE", ...], devices as'
        ' ["/dev/NAME", ...], etcd as ["URL", ...], and [[vm]] for each VM',
    ),
    "model_type": ("not a table", "write it as a [table] of its own"),
    "string_type": ("not a string", "write it in quotes"),
}
# The items of lists, by key.
_ITEMS = {"domains": "name", "drives": "drive", "devices": "device", "etcd": "URL"}
_BOUNDS = {"gt": "more than", "ge": "at least", "lt": "less than", "le": "at most"}


def validated(values: Mapping[str, object], file: str) -> Root:
    """Return the tables of a TOML file. Raises ConfigError, which names the key."""
    try:
        return Root.model_validate(values)
    except ValidationError as error:
        raise _invalid(error, file) from None


def _invalid(invalid: ValidationError, file: str) -> ConfigError:
    # Unknown keys first: a missing key is often there, but misspelt.
    errors = invalid.errors(include_url=False)
    error = min(errors, key=lambda error: error["type"] != "extra_forbidden")
    kind, context, place = error["type"], error.get("ctx", {}), error["loc"]
    if place[-1] == "[key]" and kind != "extra_forbidden":  # the name of a table is what is wrong
        place = place[:-1]
    where = f"{file}, {_where(place)}"
    value = shown(error["input"])
    if kind == "extra_forbidden":
        return ConfigError(where, "not known", did_you_mean(str(place[-1]), _known(place[:-1])))
    if kind == "missing":
        return ConfigError(where, "is missing", "add it")
    if kind == "value_error":
        wrong = context["error"]
        return ConfigError(where, wrong.what, wrong.mend)
    if kind == "literal_error":
        return ConfigError(where, f"{value} is not known", f"give {context['expected']}")
    for bound, words in _BOUNDS.items():
        if bound in context:
            number = context[bound]
            figure = f"{number:g}" if isinstance(number, float) else number
            return ConfigError(where, f"is {value}", f"give {words} {figure}")
    what, mend = _TYPES.get(kind, (error["msg"], "see agent.toml(5)"))
    return ConfigError(where, f"{value} is {what}", mend)


def _where(place: Sequence[int | str]) -> str:
    """Return a place in TOML's words: [classes.gold] limit."""
    match place:
        case ["vm", int(number), "drives", str(device), *key]:
            table = f"[[vm]] {number + 1}, [vm.drives.{_key(device)}]"
        case ["vm", int(number), *key]:
            table = f"[[vm]] {number + 1}"
        case ["classes" | "tenants" | "ceilings" | "storage" as kind, str(name), *key] if key:
            table = f"[{kind}.{_key(name)}]"
        case [str(name), *key] if key:
            table = f"[{_key(name)}]"
        case [*key]:
            table = ""
    name = next((_key(part) for part in key if isinstance(part, str)), "")
    item = _ITEMS.get(name, "point")
    which = next((f" {item} {part + 1}" for part in key if isinstance(part, int)), "")
    return f"{table} {name}{which}".strip()


def _key(name: str) -> str:
    return name if NAME.pattern.fullmatch(name) else shown(name)


def _known(table: Sequence[int | str]) -> list[str]:
    """Return the keys that a table may have."""
    model: type[Table] = Root
    for part in table:  # a key, or the name or number of one of its tables
        if (field := model.model_fields.get(str(part))) is not None:
            model = _table_of(field.annotation) or model
    return [field.alias or name for name, field in model.model_fields.items()]


def _table_of(annotation: object) -> type[Table] | None:
    """Return the table that a type is or holds, if any."""
    if isinstance(annotation, type) and issubclass(annotation, Table):
        return annotation
    return next(filter(None, map(_table_of, get_args(annotation))), None)

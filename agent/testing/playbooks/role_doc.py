"""playbooks/roles/iokeel/README.md, made from the role's argument_specs.yml: `make role-doc`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

ROLE = Path(__file__).parents[3] / "playbooks/roles/iokeel"
_HEAD = """\
# iokeel, an Ansible role

Installs iokeel's agent on Debian 12 and 13 hypervisors from a package that `make packages-agent`
builds, and removes it again. It uses `ansible.builtin` only. The [playbooks](../../deploy.yml)
beside it show how, and [operations](../../../docs/operations.md) is for those who run them.

```yaml
- hosts: hypervisors
  become: true
  roles:
    - role: iokeel
      vars:
        iokeel_package: build/packages
        iokeel_tenants: {acme: {limit: 50000}}
```

Tags are `preflight`, `install`, `configure`, `hook`, `service` and `verify`. The tables
`[classes.NAME]` and so on are those of [agent.toml](../../../docs/configuration.md). An unknown
variable that begins with `iokeel_` is an error; only a removal goes on.

## To work on it

`make molecule`, as root and in the project's top folder, applies the role to Debian 12 and 13 in
booted containers: in check mode, for real, and once more. Then it looks at the agent, and ends the
containers. It takes a minute, and two more if the agent's packages have to be built. In steps:

```sh
make molecule DO=converge               # boot them at first use, and apply the role
make molecule DO="login --host trixie"  # or bookworm
make molecule DO=verify
make molecule DO=destroy
```

With `.venv/bin` in `PATH`, `molecule test` in this folder does the same. It has containers of its
own, beside those of `make molecule`.

This page is made from `meta/argument_specs.yml` by `make role-doc`.
"""


def text() -> str:
    """Return the page."""
    specs = yaml.safe_load((ROLE / "meta/argument_specs.yml").read_text())["argument_specs"]
    return "".join([_HEAD, *_sections(specs)])


def _sections(specs: Mapping[str, Any]) -> Iterator[str]:
    shown: list[Mapping[str, Any]] = []
    for name, spec in specs.items():
        yield f"\n## {name}\n\n{spec['short_description']}."
        yield f" (`tasks_from: {name}`)\n" if name != "main" else "\n"
        same = next((n for n, s in specs.items() if s["options"] is spec["options"]), name)
        if same != name:
            yield f"Its variables are those of {same}.\n"
        elif spec["options"]:
            yield "\n| variable | type | default | meaning |\n|---|---|---|---|\n"
            for variable, option in spec["options"].items():
                yield from _rows(variable, option, known=option in shown)
                shown.append(option)


def _rows(name: str, option: Mapping[str, Any], *, known: bool, depth: int = 0) -> Iterator[str]:
    kind = option["type"] + (f" of {option['elements']}" if "elements" in option else "")
    default = "required" if option.get("required") else ""
    if "default" in option:
        default = f"`{json.dumps(option['default'])}`"
    choices = ", ".join(f"`{choice}`" for choice in option.get("choices", ()))
    meaning = option["description"].rstrip(".") + (f": {choices}" if choices else "")
    yield f"| {'&nbsp;&nbsp;' * depth}`{name}` | {kind} | {default} | {meaning} |\n"
    for key, inner in () if known else option.get("options", {}).items():
        yield from _rows(key, inner, known=False, depth=depth + 1)


if __name__ == "__main__":
    (ROLE / "README.md").write_text(text())

"""The configuration that was in force last, for a file that can't be used any more."""

from __future__ import annotations

from pathlib import Path

import pytest

from iokeel.config.last import keep, load_or_last
from iokeel.config.load import load

WAYS = [
    '[agent]\nstate_dir = "{}"\n',
    "[agent]\nlog_level = 'info'\n  state_dir='{}' # here\n",
    'agent.state_dir = "{}"\n',
    'agent = {{ log_level = "info", state_dir = "{}" }}\n',
    '[agent]\n"state_dir" = "{}"\n',
    '[agent]\n# state_dir = "/elsewhere"\nstate_dir = """\n{}"""\n',
    "[agent]\nstate_dir = '''{}'''\n",
]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("wrong", ["[tenants.b]\nlimitt = 3\n", "[vm", "x = 1\nx = 2\n", "\xff"])
def test_the_last_good_one_is_found_however_the_state_folder_is_written(
    tmp_path: Path, way: str, wrong: str
) -> None:
    state, file = tmp_path / "state", tmp_path / "agent.toml"
    state.mkdir()
    good = way.format(state) + "[tenants.acme]\nlimit = 5\n"
    file.write_text(good)
    keep(load(file), file)
    file.write_bytes(good.encode() + wrong.encode("latin-1"))
    config, refused = load_or_last(file)
    assert [*config.tenants] == ["acme"]
    assert refused is not None

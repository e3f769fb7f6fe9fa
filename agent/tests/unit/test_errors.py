"""The texts of errors, and their values."""

from __future__ import annotations

from iokeel.errors import ConfigError, HostReports, NewerSchema, StateNotWritten


def test_a_state_that_is_not_written_says_what_is_lost_until_it_is() -> None:
    full = StateNotWritten("/var/lib/iokeel/state.db", "disk is full", "a restart forgets credit")
    assert (full.file, full.reason) == ("/var/lib/iokeel/state.db", "disk is full")
    assert str(full) == (
        "/var/lib/iokeel/state.db: can't be written: disk is full; free some space, or let the"
        " agent write it; until then a restart forgets credit"
    )
    assert str(StateNotWritten("fleet.db", "disk is full")) == (
        "fleet.db: can't be written: disk is full; free some space, or let the agent write it"
    )


def test_a_newer_schema_says_which_one_this_agent_knows() -> None:
    error = NewerSchema("etcd /iokeel/format", 3, 2)
    assert (error.version, error.known) == (3, 2)
    assert str(error) == (
        "etcd /iokeel/format: was written by a newer iokeel, schema 3; upgrade this agent, which"
        " knows schema 2"
    )


def test_a_host_that_reports_is_named_with_its_budget() -> None:
    error = HostReports("hv1", "tenant shop", "stop its agent, and wait 15 s")
    assert (error.host, error.budget) == ("hv1", "tenant shop")
    assert str(error) == "host hv1: reports on tenant shop; stop its agent, and wait 15 s"


def test_an_error_is_told_of_another_place() -> None:
    error = ConfigError("'4x'", "not a size", "give bytes")
    assert ConfigError.of(error, "--size '4x'") == ConfigError(
        "--size '4x'", "not a size", "give bytes"
    )

"""Drives' policies as tests of the law draw them."""

from __future__ import annotations

from hypothesis import strategies as st

from iokeel.core.values.policy import DrivePolicy

POLICIES = st.builds(
    lambda limit, reservation, weight, separate, max_bytes: DrivePolicy(
        reservation if limit is None else min(reservation, limit),
        limit,
        weight=weight,
        separate_budgets=separate,
        max_bytes=max_bytes,
    ),
    st.none() | st.integers(1, 20_000),
    st.integers(0, 5000),
    st.integers(1, 10_000),
    st.booleans(),
    st.none() | st.integers(1, 10**10),
)

"""Tests of the simulated disk."""

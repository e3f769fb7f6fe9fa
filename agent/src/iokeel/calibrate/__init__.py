"""Calibration: measure a storage with fio, and fit its capacity, curves and latency target."""

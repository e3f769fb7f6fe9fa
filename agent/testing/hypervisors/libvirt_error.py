"""Errors of libvirt that are made up."""

from __future__ import annotations

import libvirt


def refusal(code: int) -> libvirt.libvirtError:
    """Return an error as libvirt raises it, with one of its codes (VIR_ERR_...)."""
    error = libvirt.libvirtError("made up")
    error.err = (code, 0, "made up", 2, None, None, None, 0, 0)
    return error

"""QEMU's own words, whoever carries them."""

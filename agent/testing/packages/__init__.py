"""The Debian packages, and folders of them."""

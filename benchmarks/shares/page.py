"""What did the shares' benchmarks find? Draws docs/shares.png, and fills in docs/measurements.md.

    python -m benchmarks.shares.page

Reads results/shares-*.json.
"""

from __future__ import annotations

import argparse

from benchmarks.readme import put_into
from benchmarks.result_file import BENCHMARKS, question
from benchmarks.shares.plot import draw
from benchmarks.shares.tables import tables

DOCS = BENCHMARKS.parent / "docs"

if __name__ == "__main__":
    argparse.ArgumentParser(description=question(__doc__)).parse_args()
    draw(DOCS / "shares.png")
    put_into(DOCS / "measurements.md", tables())

#!/usr/bin/env python
"""Many .bin/.idx pairs into one: `megatron-tlm data merge` under the name Megatron users know."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # works without installing the package

from megatron_tlm.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["data", "merge", *sys.argv[1:]]))

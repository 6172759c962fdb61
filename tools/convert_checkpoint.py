"""The checkpoint converter under the name Megatron users know: the same as `megatron-tlm convert`."""

import sys
from pathlib import Path

# Megatron's tools run from a clone that is not installed; so does this one.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from megatron_tlm.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["convert", *sys.argv[1:]]))

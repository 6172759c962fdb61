"""Text from a checkpoint: the same as `megatron-tlm generate`."""

import sys
from pathlib import Path

# Megatron's tools run from a clone that is not installed; so does this one.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from megatron_tlm.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["generate", *sys.argv[1:]]))

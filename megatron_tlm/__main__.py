"""`python -m megatron_tlm`, and so `torchrun ... -m megatron_tlm train`."""

import sys

from megatron_tlm.cli.main import main

if __name__ == "__main__":
    sys.exit(main())

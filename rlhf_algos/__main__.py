"""`python -m rlhf_algos`: the same as the command `rlhf-algos`."""

import sys

from rlhf_algos.cli import main

if __name__ == "__main__":
    sys.exit(main())

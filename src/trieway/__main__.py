"""`python -m trieway`: the same as the command `trieway`."""

import sys

from trieway.cli import main

if __name__ == "__main__":
    sys.exit(main())

"""``python -m durakit`` is the command ``durakit``."""

import sys

from durakit.cli import main

if __name__ == "__main__":
    sys.exit(main())

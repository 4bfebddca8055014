"""``python -m fastrl`` is the command ``fastrl``."""

import sys

from fastrl.cli import main

sys.exit(main())

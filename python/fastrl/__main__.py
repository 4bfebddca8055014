"""``python -m fastrl`` is the command ``fastrl``."""

import sys

from fastrl.cli.main import main

sys.exit(main())

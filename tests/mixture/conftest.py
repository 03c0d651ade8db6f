"""The tests of mixtures share the simulations in `mixture_rows.py`, which stands beside them."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

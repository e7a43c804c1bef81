"""`python -m phub serve`, `doctor` or `topology`: the program phub-server."""

import sys

from . import _phub

sys.exit(_phub.run_server(["phub-server", *sys.argv[1:]]))

"""`python3 -m devward.ctl` is devwardctl."""

import sys

from devward.ctl.main import main

sys.exit(main())

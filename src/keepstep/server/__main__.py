"""``python -m keepstep.server``."""

import sys

from keepstep.server.wiring import main

sys.exit(main())

"""``python -m keepstep.launcher``."""

import sys

from keepstep.launcher.wiring import main

if __name__ == "__main__":
    sys.exit(main())

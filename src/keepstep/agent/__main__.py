"""``python -m keepstep.agent``: the agent's process. Owns nothing else, so that it stays small."""

import sys

from keepstep.agent.wiring import main

if __name__ == "__main__":
    sys.exit(main())

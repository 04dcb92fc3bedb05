"""``python -m keepstep`` is ``keepstep``."""

from keepstep.cli.app import main

if __name__ == "__main__":
    main()

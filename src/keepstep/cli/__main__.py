"""``python -m keepstep.cli``, where the ``keepstep`` script is not on the path."""

from keepstep.cli.app import main

main()

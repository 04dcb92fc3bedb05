"""Optional parts of the package: what to say where one is missing. Owns that sentence only."""

import importlib.util

from keepstep.cli.terminal import fail


def need(module: str, extra: str) -> None:
    """Ends the program where ``module`` is not installed, and says which extra brings it."""
    if importlib.util.find_spec(module) is None:
        fail(f"this needs {module}: pip install 'keepstep[{extra}]'")

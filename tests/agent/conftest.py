from collections.abc import Iterator
from pathlib import Path

import pytest

from .driver import Bench


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """An agent under test and its scripted server; whatever happens, nothing of it is left behind."""
    made = Bench(tmp_path)
    try:
        yield made
    finally:
        made.close()

"""What a warm interpreter imports beforehand. Owns the choice, by reading the script; must not import anything itself.

Only modules are chosen that the script would import anyway and whose import starts no thread and opens no device.
"""

import ast
import importlib.util
import os
import sys
from collections.abc import Iterable
from typing import NamedTuple

_FILES_MAX = 200
"""Files of the user's own that are read for imports; beyond that the script is a package and says what it wants itself."""

TORCH = (
    "torch",
    "torch.distributed",
    "torch.nn.parallel",
    "torch.optim",
    # The first step of AdamW imports it: without this each rank pays 1.8 s of CPU then.
    "torch._dynamo",
    "torch.utils.data",
)
_BRING_TORCH = frozenset(
    ("accelerate", "deepspeed", "diffusers", "lightning", "pytorch_lightning", "timm", "torch", "torchaudio", "torchdata",
     "torchvision", "transformers")
)  # fmt: skip


class Preload(NamedTuple):
    modules: tuple[str, ...]
    wants_torch: bool
    """The ranks will want a rendezvous store."""


def choose(argv: Iterable[str], extra: Iterable[str] = ()) -> Preload:
    """What to import for ``script.py args…`` or ``-m module args…``, and for ``extra`` modules named by the user."""
    names = _names_in(entry_file(tuple(argv)))
    extra = tuple(extra)
    wanted = names | {name.partition(".")[0] for name in extra}
    torch = bool(wanted & _BRING_TORCH) and importlib.util.find_spec("torch") is not None
    modules: list[str] = [*TORCH] if torch else []
    if "numpy" in wanted or torch:
        modules.append("numpy")
    if "keepstep" in wanted:
        modules.append("keepstep.train")
    return Preload((*modules, *extra), torch)


def entry_file(argv: tuple[str, ...]) -> str | None:
    """The file that is the script; None where a module cannot be found without running it."""
    if argv[:1] != ("-m",):
        return argv[0]
    sys.path.insert(0, os.getcwd())
    try:
        spec = importlib.util.find_spec(argv[1])
    except ImportError:
        return None
    finally:
        sys.path.pop(0)
    if spec is None:
        return None
    if spec.submodule_search_locations:
        return os.path.join(next(iter(spec.submodule_search_locations)), "__main__.py")
    return spec.origin


def _names_in(entry: str | None) -> set[str]:
    """Top-level names imported by a file and by the files beside it that it imports."""
    names: set[str] = set()
    waiting = [entry] if entry else []
    read: set[str] = set()
    while waiting and len(read) < _FILES_MAX:
        path = waiting.pop()
        if path in read or not os.path.isfile(path):
            continue
        read.add(path)
        for dotted in _imports(path):
            names.add(dotted.partition(".")[0])
            waiting.extend(_local_files(os.path.dirname(entry or ""), os.path.dirname(path), dotted))
    return names


def _imports(path: str) -> set[str]:
    try:
        with open(path, "rb") as file:
            tree = ast.parse(file.read(), path)
    except (OSError, SyntaxError, ValueError):
        # The rank itself will run into it and say so far better.
        return set()
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.update([node.module, *(f"{node.module}.{alias.name}" for alias in node.names)])
        elif isinstance(node, ast.ImportFrom):
            found.update(alias.name for alias in node.names)
    return found


def _local_files(*folders_then_name: str) -> list[str]:
    *folders, dotted = folders_then_name
    tail = dotted.replace(".", os.sep)
    return [
        os.path.join(folder, candidate)
        for folder in folders
        for candidate in (f"{tail}.py", os.path.join(tail, "__init__.py"))
    ]

"""How far the kernel log of this boot was read, kept across lives of the agent. Owns the file.

An agent that is restarted must not take for old what happened while it was away, nor for new what it told before.
"""

import os
from dataclasses import dataclass

import msgspec


class _Kept(msgspec.Struct, frozen=True):
    boot_id: str
    kind: str
    mark: int


@dataclass
class Position:
    """``kind`` says what counts: ``device`` sequence numbers, ``journal`` microseconds since boot. Empty: nothing known."""

    path: str = ""
    """Empty: nothing is kept."""
    boot_id: str = ""
    kind: str = ""
    mark: int = 0

    @classmethod
    def load(cls, path: str, boot_id: str) -> "Position":
        """What was kept in this very boot; a broken file is none."""
        try:
            with open(path, "rb") as file:
                kept = msgspec.json.decode(file.read(4096), type=_Kept)
        except (OSError, msgspec.DecodeError):
            return cls(path=path, boot_id=boot_id)
        if kept.boot_id != boot_id:
            return cls(path=path, boot_id=boot_id)
        return cls(path=path, boot_id=boot_id, kind=kept.kind, mark=kept.mark)

    def keep(self, kind: str, mark: int) -> None:
        """Replaces the file. Not synced: after a crash of the machine its boot id does not fit any more."""
        if not self.path or not mark or (kind, mark) == (self.kind, self.mark):
            return
        self.kind, self.mark = kind, mark
        fresh = f"{self.path}.new"
        with open(fresh, "wb") as file:
            file.write(msgspec.json.encode(_Kept(self.boot_id, kind, mark)))
        os.replace(fresh, self.path)

"""Software arrays: ``/proc/mdstat``, read by the reader of that file. Tells what is new."""

from pathlib import Path

from msgspec.structs import replace

from keepstep.adapters.sysfs.watching import CLOCK, Batch, KeptFiles
from keepstep.evidence.document import Document
from keepstep.evidence.storage import filesystems

PERIOD_S = 30.0


class ArrayWatch:
    name = "md"

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._path = proc / "mdstat"
        self._files = KeptFiles()
        self._text = ""
        self._told: set[tuple[str, str]] = set()

    def look(self, now_s: float) -> Batch:
        batch = Batch()
        text = self._files.text(self._path)
        if text is None:
            batch.coverage = ("absent", "no software arrays")
            return batch
        if text == self._text:
            return batch
        self._text = text
        reading = filesystems.READER.read(Document("", text.encode()))
        found = {(seen.part, seen.signal) for seen in reading.observations}
        for seen in reading.observations:
            if (seen.part, seen.signal) not in self._told:
                batch.observations.append(replace(seen, source=self.name, at_s=now_s, clock=CLOCK, line=0))
        self._told = found
        return batch

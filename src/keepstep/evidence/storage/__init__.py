"""Readers of what drives, arrays and file systems say of themselves."""

from keepstep.evidence.reading import Reader
from keepstep.evidence.storage import filesystems, smart_json, smart_text

READERS: tuple[Reader, ...] = (smart_json.READER, smart_text.READER, filesystems.READER)

from keepstep.evidence.reading import Reader

READERS: tuple[Reader, ...] = ()

"""A restore that only keeps its pace: DIRECTORY JOB LANE BYTES_S SIZE_BYTES. Prints when it began and ended, and its words."""

import sys
import time
from typing import Any

from keepstep.checkpoint.repository.traffic import Pace, Traffic
from keepstep.checkpoint.stores.posix import PosixStore

directory, job, rate, size = sys.argv[1], sys.argv[2], int(sys.argv[4]), int(sys.argv[5])
lane: Any = sys.argv[3]
words: list[str] = []
traffic = Traffic(PosixStore(directory), job, Pace(bytes_s=rate, lane=lane, token_s=6.0), words.append)
print("ready", flush=True)
sys.stdin.readline()
begun_s = time.time()
with traffic.enter(size) as passage:
    for _ in range(100):
        passage.progress(size // 100)
print(begun_s, time.time(), " ".join(words), sep="|")

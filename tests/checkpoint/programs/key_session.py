"""One of several processes of a generation: waits for a line, asks for the session key, says what it got and seals a chunk.

Arguments: store, key directory.
"""

import sys

from keepstep.checkpoint.keys.port import Context
from keepstep.checkpoint.keys.providers import FileProvider
from keepstep.checkpoint.keys.sessions import SessionKeys
from keepstep.checkpoint.stores.posix import PosixStore

keys = SessionKeys(PosixStore(sys.argv[1]), [FileProvider(sys.argv[2])])
print("ready", flush=True)
sys.stdin.readline()
session = keys.session("acme", "gpt", 3)
sealer = keys.sealer(session, Context(tenant="acme", job="gpt", generation=3, step=100, pack="0" * 32))
out = bytearray(7)
tag = sealer.seal(0, b"weights", memoryview(out))
print(session, sealer.fingerprint, out.hex(), tag.hex(), flush=True)

"""Uploads an object without end, in blocks of 1 MiB, until it is killed. Arguments: address of the store, key.

Says ``<MiB>`` after each block.
"""

import os
import sys

from keepstep.checkpoint.stores.address import Limits, open_store

MEBIBYTE = 1024 * 1024

if __name__ == "__main__":
    store = open_store(sys.argv[1], Limits(connect_s=60.0, request_s=60.0, patience_s=60.0, retries=2))
    writer = store.writer(sys.argv[2], 64 * MEBIBYTE)
    for number in range(1, 4096):
        writer.write(os.urandom(MEBIBYTE))
        print(number, flush=True)

"""A launcher that starts a snapshot server and then hangs. Arguments: socket. Prints the server's pid."""

import json
import os
import subprocess
import sys

command = [sys.executable, "-m", "keepstep.checkpoint.snapshot", "--job", "job", "--socket", sys.argv[1]]
server = subprocess.Popen([*command, "--parent", str(os.getpid())], stdout=subprocess.PIPE)
assert server.stdout is not None
print(json.loads(server.stdout.readline())["pid"], flush=True)
sys.stdin.readline()

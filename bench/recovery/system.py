"""Our row of the peers' harness: starts the benchmark job under Keepstep. Copied into the harness's ``systems/`` folder.

The control plane is a process of its own ("node" ``cp``), so that losing a node never takes it along. Where the fault is a
node's and a replacement is part of the case, a warm spare stands by from the start: that is what Keepstep does with a spare.
"""

import os
import time
from typing import ClassVar

from harness import HERE, Base  # the harness's own module, present where this file is copied to

LEAVE_WAIT_S = 10.0


class System(Base):
    VENV = "keepstep"
    DETECT = (r"\[keepstep\].*(rank \d+ (ended|failed)|fenc|lost|stop)",)
    OPTIONS: ClassVar = {"pg_timeout": 60}

    def _state(self, run):
        return os.path.join(run.dir, "state")

    def _address(self, run):
        # A unix socket path is limited to about 100 bytes; the run folder may be deeper than that.
        return f"unix:/tmp/keepstep-bench-{run.id}.sock"

    def start(self, run, nodes):
        self.nodes = nodes
        if nodes == 1:
            cmd = [
                self.py(), "-m", "keepstep", "run", "--state-dir", self._state(run), "--job", run.id,
                "--checkpoint-dir", os.path.join(run.dir, "ckpt"), "--nproc-per-node", "4",
                os.path.join(HERE, "train_keepstep.py"),
            ]  # fmt: skip
            run.spawn("run", cmd, node=0)
            return
        server = [
            self.py(),
            "-m",
            "keepstep",
            "server",
            "--state-dir",
            self._state(run),
            "--listen",
            self._address(run),
        ]
        run.spawn("server", server, node="cp")
        for node in range(nodes):
            self._launcher(run, node)
        if run.fault == "F4r":
            self._launcher(run, nodes, spare=True)

    def _launcher(self, run, node, spare=False):
        # Without a replacement the job is declared elastic.
        smallest = 1 if run.fault in ("F4", "F4h") else self.nodes
        cmd = [
            self.py(), "-m", "keepstep.launcher", "--server", self._address(run), "--state-dir", self._state(run),
            "--job", run.id, "--node", f"n{node}", "--nproc-per-node", str(4 // self.nodes),
            "--min-nodes", str(smallest), "--max-nodes", str(self.nodes),
            "--checkpoint-dir", os.path.join(run.dir, "ckpt"), *(["--spare"] if spare else []),
            "--", os.path.join(HERE, "train_keepstep.py"),
        ]  # fmt: skip
        run.spawn(f"node{node}", cmd, node=node)

    def replace_node(self, run, node):
        """The spare has taken the node's place already."""

    def finished(self, run):
        events = [e for e in run.events() if e["kind"] == "final"]
        log = run.poll()
        return bool(events) and len({e["rank"] for e in events}) >= (log[-1][6] if log else 4)

    def stop(self, run):
        """Launchers leave by themselves when the server has told them; the server is there to stay, so it is ended."""
        launchers = [child for child in run.children if child.bench_name != "server"]
        deadline = time.time() + LEAVE_WAIT_S
        while time.time() < deadline and any(child.poll() is None for child in launchers):
            time.sleep(0.02)
        for child in run.children:
            if child.bench_name == "server":
                child.terminate()

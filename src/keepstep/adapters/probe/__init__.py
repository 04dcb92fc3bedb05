"""The killable child: runs what could hang, and is never waited for longer than its deadline."""

from keepstep.adapters.probe.child import Probe, Probes, resolve, run_probe

__all__ = ["Probe", "Probes", "resolve", "run_probe"]

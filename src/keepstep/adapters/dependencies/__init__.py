"""What jobs of this node need from outside: looked at in the way that a user declares."""

from keepstep.adapters.dependencies.declared import Dependency, Mount
from keepstep.adapters.dependencies.source import DependencySource

__all__ = ["Dependency", "DependencySource", "Mount"]

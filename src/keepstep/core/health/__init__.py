"""Health score: how risky a part is, when it will fail, when to act. Pure: counters in, a report or a recommendation out."""

from keepstep.core.health.cluster import Cluster, Origin, clusters
from keepstep.core.health.forecast import Forecast, Model, learned_base_per_h
from keepstep.core.health.report import HealthReport, PartHealth, assess, explain
from keepstep.core.health.timing import Candidate, Policy, Recommendation, Situation, ordered, recommend
from keepstep.core.health.window import History, Sample, extended, history

__all__ = [
    "Candidate",
    "Cluster",
    "Forecast",
    "HealthReport",
    "History",
    "Model",
    "Origin",
    "PartHealth",
    "Policy",
    "Recommendation",
    "Sample",
    "Situation",
    "assess",
    "clusters",
    "explain",
    "extended",
    "history",
    "learned_base_per_h",
    "ordered",
    "recommend",
]

"""Private and Byzantine-robust aggregation for federated learning."""

from ostraka.round import RoundResult, run_round

__all__ = ["RoundResult", "run_round"]

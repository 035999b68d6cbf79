"""The networks and the maskings of the paper's figures, by the lab's and our names."""

from ostraka.bench.rounds import EXACT, GAUSSIAN, SKETCH

NETWORKS = ("mobilenetv1", "mobilenetv2", "efficientnet-b0", "efficientnet-b1")
MASKINGS = (GAUSSIAN, EXACT, SKETCH)

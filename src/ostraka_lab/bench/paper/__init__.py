"""The paper's experiments on this machine: figures 2a, 2b and 3, and its headline.

names      what the figures are about
networks   how long the updates of the paper's networks are
distances  figures 2a and 2b: the distances inside the enclave, and a worker's kernel
epoch      figure 3: where the time of an epoch goes
training   one client's local training, for figure 3
headline   a round with everything inside, over a round with workers
suite      all of it
"""

from ostraka_lab.bench.parties import EXACT, GAUSSIAN, SKETCH

NETWORKS = ("mobilenetv1", "mobilenetv2", "efficientnet-b0", "efficientnet-b1")
MASKINGS = (GAUSSIAN, EXACT, SKETCH)

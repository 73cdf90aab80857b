"""The dashboards, one file each."""

from holdfast.dashboards.boards.checkpoints import BOARD as CHECKPOINTS
from holdfast.dashboards.boards.cluster import BOARD as CLUSTER
from holdfast.dashboards.boards.incidents import BOARD as INCIDENTS
from holdfast.dashboards.boards.job import BOARD as JOB
from holdfast.dashboards.boards.network import BOARD as NETWORK
from holdfast.dashboards.boards.node import BOARD as NODE
from holdfast.dashboards.boards.performance import BOARD as PERFORMANCE

BOARDS = (CLUSTER, JOB, NODE, PERFORMANCE, NETWORK, CHECKPOINTS, INCIDENTS)

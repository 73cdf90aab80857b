"""What the arenas of these tests hold. Without torch, for processes that start often."""

from holdfast.checkpoint.format.tiles import GlobalTensor
from holdfast.checkpoint.snapshots.description import Description
from holdfast.plan.tiles import TensorShard

TENSORS = {
    "w": GlobalTensor("w", (64, 1000), "F32"),
    "half": GlobalTensor("half", (7,), "BF16"),
    "n": GlobalTensor("n", (), "I64"),
    "none": GlobalTensor("none", (0, 3), "F32"),
}
SHARDS = [
    ("w", TensorShard((32, 0), (32, 1000))),
    ("half", TensorShard((0,), (7,))),
    ("n", TensorShard((), ())),
    ("none", TensorShard((0, 0), (0, 3))),
]
WHAT = Description("job", 1, 2, "digest", TENSORS, SHARDS)

"""What workers report to one another of what they hold. Collectives: all workers call each function together."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Any

from holdfast.checkpoint.format.tiles import Layout, layout_from_json, layout_to_json
from holdfast.checkpoint.format.worker_state import merged
from holdfast.checkpoint.restore.group import SavingGroup
from holdfast.checkpoint.worker.stage1 import Tensors


def gathered(group: SavingGroup, values: Mapping[str, Any]) -> dict[str, Any]:
    """Those of all workers, at rank 0; empty elsewhere."""
    everyones = group.gather(zlib.compress(json.dumps(values).encode(), 1))
    return merged({rank: json.loads(zlib.decompress(one)) for rank, one in enumerate(everyones)}) if everyones else {}


def agreed_layout(group: SavingGroup, tensors: Tensors) -> Layout:
    """What all workers hold, known to all."""
    mine = layout_to_json([(tensor, shard) for tensor, shard, _ in tensors.values()])
    everyone = [zlib.decompress(one).decode() for one in group.gather(zlib.compress(mine.encode(), 1))]
    known = group.broadcast(zlib.compress(json.dumps(everyone).encode(), 1))
    return layout_from_json(json.loads(zlib.decompress(known)))

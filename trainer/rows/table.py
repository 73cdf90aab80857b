"""All techniques that have rows: one entry each. `holdfast rows`, `make rows` and the documentation follow from it."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.trainer.rows import (
    batches,
    caches,
    costs,
    groups,
    jitter,
    layouts,
    model,
    optimizers,
    pipelines,
    recompute,
    replicas,
    transfers,
)
from holdfast.trainer.rows.layer import fused, overlapped, sub_pipelined
from holdfast.trainer.rows.models import partition
from holdfast.trainer.rows.network import clos
from holdfast.trainer.rows.optim import host_states, in_chunks, second_order
from holdfast.trainer.rows.planner import cuts, sharing, unlike_nics
from holdfast.trainer.rows.row import Row, Technique


def _axonn() -> Iterator[Row]:
    yield from pipelines.axonn()
    yield from host_states.by_bucket()
    yield from host_states.beside()


def _bagpipe() -> Iterator[Row]:
    from holdfast.trainer.rows import clicks  # torch, which the list of techniques does not need

    yield from caches.tables()
    yield from clicks.real()


def _patrick_star() -> Iterator[Row]:
    yield from caches.chunks()
    yield from in_chunks.trained()
    yield from in_chunks.wire()


TECHNIQUES = {
    one.id: one
    for one in (
        Technique("M0", "MFU", "MegaScale, table 2", "always: it is what is reported", model.mfu),
        Technique("M1", "Parallel block", "MegaScale, 3.1", "tp ranks wait for each other", layouts.parallel_block),
        Technique("M2", "Sliding-window attention", "MegaScale, 3.1", "sequences are long", model.window),
        Technique("M3", "LAMB", "You et al., ICLR 2020; MegaScale, 3.1", "the batch is too large for AdamW",
                  optimizers.lamb),
        Technique("M4", "Sums and gathers beside computation", "MegaScale, 3.2",
                  "replicas wait for each other between steps", replicas.beside),
        Technique("M5", "Messages beside computation", "Zhuang et al., MLSys 2023; MegaScale, 3.2",
                  "messages between stages take a tenth of a forward or more", pipelines.messages),
        Technique("M6", "Transfers beside matrix products", "MegaScale, 3.2", "tp ranks wait for their activations",
                  overlapped.chunks),
        Technique("M7", "Batches read ahead", "MegaScale, 3.4", "always, where memory for a batch is left",
                  batches.ahead),
        Technique("M8", "One loader a node", "MegaScale, 3.4", "ranks of a node read the same data", batches.once),
        Technique("M9", "Groups made by their members", "MegaScale, 3.5", "always: it starts faster", groups.set_up),
        Technique("M10", "Switches in three tiers", "MegaScale, 3.6",
                  "always: replicas before stages in the order of ranks", clos.clos),
        Technique("M11", "Conflicts on uplinks", "MegaScale, 3.6", "always: uplinks twice as fast as NICs", clos.ecmp),
        Technique("M12", "Congestion control", "MegaScale, 3.6", "many senders meet at one port", clos.congestion),
        Technique("M13", "Timeouts in order", "MegaScale, 3.6 and 6.3", "links flap", groups.timeouts),
        Technique("M14", "Fused operations", "MegaScale, 3.3", "always", fused.fusion),
        Technique("M20", "Order of ranks, and no jitter", "MegaScale, 3.1 and 6.3", "always: tp peers share a node",
                  jitter.order_and_jitter),
        Technique("P1", "1F1B", "Narayanan et al., SOSP 2019", "activations must be few", pipelines.one_f_one_b),
        Technique("P2", "Interleaved 1F1B", "Narayanan et al., SC 2021", "the bubble must shrink, backward stays whole",
                  pipelines.interleaved),
        Technique("P3", "Zero bubble", "Qi et al., ICLR 2024", "the bubble must be smallest", pipelines.zero_bubble),
        Technique("C1", "Chimera", "Li and Hoefler, SC 2021",
                  "micro-batches are about as many as ranks, and weights fit twice", pipelines.chimera),
        Technique("C2", "GPipe", "Huang et al., NeurIPS 2019", "as a baseline", pipelines.gpipe),
        Technique("C2b", "GPipe: recompute by cell", "Huang et al., NeurIPS 2019, 2.3",
                  "activations of all layers do not fit: a stage keeps its input alone", recompute.by_cell),
        Technique("C3", "Breadth-first pipeline", "Lamy-Poirier, MLSys 2023",
                  "parameters are gathered by stage (ZeRO stage 3)", pipelines.breadth_first),
        Technique("C4", "AxoNN: what is ready runs, the optimizer by bucket", "Singh and Bhatele, IPDPS 2022",
                  "times vary at random (schedule), or optimizer states do not fit (`optim.state = host`)", _axonn),
        Technique("C5", "ZeRO", "Rajbhandari et al., SC 2020", "replicas hold more than fits", layouts.zero),
        Technique("C6", "Chunks (PatrickStar)", "Fang et al., TPDS 2022",
                  "parameters and states do not fit on the device: `memory.policy = chunks`", _patrick_star),
        Technique("C7", "Tables behind a cache (Bagpipe)", "Agarwal et al., SOSP 2023",
                  "tables are too large for a trainer: `holdfast train-embeddings`", _bagpipe),
        Technique("C8", "Alpa: layouts by integer and dynamic programs", "Zheng et al., OSDI 2022",
                  "the best layout on these devices is not known", cuts.alpa),
        Technique("C9a", "Merak: modules cut as they are", "Lai et al., TPDS 2023",
                  "the model is a module of your own: `holdfast train --model MODULE:FUNCTION`", partition.recomposed),
        Technique("C9b", "Merak: recompute off the critical path", "Lai et al., TPDS 2023",
                  "stages recompute their activations", pipelines.merak),
        Technique("C9c", "Merak: stage-aware recompute", "Lai et al., TPDS 2023",
                  "the first stages of a pipeline run out of memory before the last", recompute.by_stage),
        Technique("C9d", "Merak: tensor parallelism in sub-batches", "Lai et al., TPDS 2023",
                  "tp ranks wait for their sums, and a micro-batch has two samples or more", sub_pipelined.parts),
        Technique("C10", "COMET: what a layout costs", "Kadiyala et al., COMET",
                  "before a run: which layout is fastest, and what fits", costs.comet),
        Technique("C11", "DP-KFAC", "Zhang et al., arXiv 2206.15143",
                  "steps are dear, and matrices small enough to invert", second_order.dp_kfac),
        Technique("C12", "Partial backward", "Rana et al., DistributedML 2021",
                  "several jobs share GPUs, and gradients of fewer data will do for the first layers",
                  replicas.partial_backward),
        Technique("C12b", "JigSaw: jobs share GPUs by roles", "Rana et al., DistributedML 2021",
                  "jobs with partial backwards wait for GPUs, and two of them fit in memory", sharing.jigsaw),
        Technique("C13", "Transfers between meshes", "Zhuang et al., MLSys 2023",
                  "pipeline ranks differ in tp, a tensor must move", transfers.resharding),
        Technique("H1", "Holmes: one job over unlike NICs", "Yang et al., ICPP 2024, arXiv 2312.03549",
                  "nodes have InfiniBand, RoCE or Ethernet alone, in one job", unlike_nics.holmes),
    )
}  # fmt: skip

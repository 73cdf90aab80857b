"""The trainer's settings: frozen dataclasses with their defaults."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from holdfast.plan.schedules.table import SCHEDULES
from holdfast.trainer.settings.optimizers import OPTIMIZERS


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The transformer's shape."""

    layers: int = 4
    d_model: int = 128
    """Width of the residual stream; a multiple of 2 x heads, since rotary position needs even heads."""
    heads: int = 8
    """Attention heads; tensor parallelism shards by whole heads, so tp divides this."""
    kv_heads: int = 0
    """Key-value heads, each shared by heads / kv_heads query heads; tp divides this. 0: one per head."""
    ffn_mult: int = 4
    """Width of the feed-forward layer, in units of d_model."""
    ffn_width: int = 0
    """The width as a number; tp divides it, and in parallel blocks the key-value heads do. 0: ffn_mult x d_model."""
    block: Literal["parallel", "serial"] = "parallel"
    """parallel: attention and feed-forward read the same input, half the tensor-parallel collectives."""
    norm: Literal["rms", "layer"] = "rms"
    """rms: scale only, as in Llama. layer: mean, scale and bias, as in GPT."""
    norm_eps: float = 1e-5
    positions: Literal["rope", "learned"] = "rope"
    """rope: queries and keys are rotated by their position. learned: a vector for each of seq_len positions."""
    rope_theta: float = 10000.0
    """Longest wavelength of rope, in units of 2 pi positions. Raise it for longer samples."""
    mlp: Literal["gelu", "swiglu"] = "gelu"
    """swiglu has three matrices instead of two: for as many parameters, take 2/3 of the width."""
    window: int = 0
    """Each position sees itself and the window - 1 before it; 0: all before it."""
    tied: bool = False
    """The head uses the embedding's weights."""
    dropout: float = 0.0
    """Share of activations dropped, 0 to below 1."""
    init_std: float = 0.02

    @property
    def inner(self) -> int:
        """Width of the feed-forward layer."""
        return self.ffn_width or self.ffn_mult * self.d_model


@dataclass(frozen=True, slots=True)
class ModuleConfig:
    """A module of your own, in place of the transformer: see docs/howto-own-model.md."""

    build: str = ""
    """`MODULE:FUNCTION` or `PATH.py:FUNCTION`, also as `--model`. The function takes nothing and returns an nn.Module
    that maps tokens (batch, seq) to logits (batch, seq, vocabulary). Empty: the transformer that [model] describes."""
    balance: Literal["flops", "parameters"] = "flops"
    """What the stages are to have in equal parts."""


@dataclass(frozen=True, slots=True)
class DataConfig:
    """The source of the text, and the size of samples."""

    path: str = ""
    """Folder of text files, also compressed (.gz), as rows (.jsonl) or tables (.parquet); `hf:PATH`: a Hugging Face
    dataset on this machine, as a folder or file; empty: the sources of Python's standard library."""
    column: str = "text"
    """The column of a dataset, of rows or of a table to read."""
    suffixes: tuple[str, ...] = ()
    """Read only files with these endings; empty: every file (for the standard library: .py)."""
    tokenizer: str = "bytes"
    """`bytes`, or `bpe:N` to train a byte-pair vocabulary of N tokens on this text."""
    seq_len: int = 64
    """Tokens in one sample."""
    max_bytes: int = 16 << 20
    """Bytes of text to read at most. More take longer to prepare, once."""
    cache_dir: str = ""
    """Folder for tokenised text; empty: the user's cache folder."""
    loader: Literal["inline", "shared"] = "inline"
    """inline: every rank reads its own data. shared: one process per node reads for all its ranks (shared memory)."""
    prefetch: int = 0
    """Steps to read ahead, by a thread of the rank or by the shared loader (which is always 1 ahead or more)."""


@dataclass(frozen=True, slots=True)
class ParallelConfig:
    """The layout of the ranks. pp x dp x tp is the world size, or dp x the sum of stage_tp."""

    pp: int = 1
    """Pipeline stages."""
    dp: int = 0
    """Replicas, each with its share of the batch; 0: world size / (pp x tp)."""
    tp: int = 1
    """Ranks that shard every layer."""
    stage_tp: tuple[int, ...] = ()
    """tp of each pipeline rank, where they differ: [1, 2] for pp = 2, in place of tp; world size = dp x their sum."""
    stage_layers: tuple[int, ...] = ()
    """Layers of each stage, the first ones first: [5, 3] for model.layers = 8 in two stages. Fewer for a stage that
    also has the embedding or the head, or slower devices. Empty: evenly."""
    schedule: str = field(default="1f1b", metadata={"choices": SCHEDULES})
    """Order in which micro-batches go through the stages: docs/trainer.md compares them."""
    chunks: int = 0
    """Pieces of the model on each rank; 0: as many as the schedule has by default, see docs/trainer.md."""
    in_flight: int = 0
    """With schedule = axonn: micro-batches under way in a pipeline at most; 0: 2 x pp. More hide longer delays of
    messages, and the first stage holds the activations of as many."""
    shard_vocabulary: bool = False
    """Split embedding and output layer over tp too: less memory, three more collectives per micro-batch."""
    sequence: bool = False
    """Between matrices, each tp rank holds its share of the positions only: activations need 1/tp of the
    memory and as many bytes on the wire. Not faster between processes of one host."""
    overlap_chunks: int = 1
    """Pieces of the sequence for each matrix of a layer, one on the wire while another is multiplied. Halves the
    waiting on a slow link (4 of them at 1 Gbit/s); gains little between processes that share their host's cores."""
    sub_batches: int = 1
    """Parts of each micro-batch: tp ranks add up what they made of one while they compute another (Merak). Hides
    all sums but the last where a sum takes no longer than a part's half of a layer. Divides train.micro_batch_size;
    needs tp of 2 or more."""
    zero: int = 1
    """ZeRO stage: what the replicas of a stage shard, in dp and in all pipes. 0 nothing, 1 optimizer state, 2 gradients
    too, 3 parameters too. Higher saves memory; from 2 on every micro-batch adds traffic."""
    zero_unit: Literal["layer", "stage"] = "layer"
    """With zero = 3: the unit that is gathered, used and freed. stage: once for all micro-batches that go through a
    stage in sequence, as with bfs; needs two stages per rank."""
    zero_live: int = 1
    """With zero_unit = stage: stages of a rank that are whole at a time. 2 gathers the next stage while one computes,
    for the memory of one more; 1 waits for each gathering, which is right where memory is short."""
    replica_sync: Literal["end", "eager", "eager-opt"] = "end"
    """With several pipes (chimera): when replicas of a stage add up their gradients. end: behind all computation.
    eager: behind the stage's last backward, beside what the rank computes next. eager-opt: so only where all ranks of
    the stage are idle behind that backward, which leaves cores and links to those that compute."""
    zero_reduce: Literal["each", "last"] = "each"
    """With zero = 3 by layer: reduce gradients after each micro-batch, or once after the last. last sends less with
    several micro-batches, and holds whole gradients until then."""
    partial_backward: int = 1
    """Roles of replicas, which rotate: role i of k goes back through the last i / k of the layers only (SPB). Backward
    takes (k + 1) / 2k of the computation on average, and gradients of the first layers come from fewer data; a step
    still takes as long as the role that does all of it, unless another job fills the rest. 1: all do everything.
    Needs zero = 0, pp = tp = 1 and dp divisible by it."""
    timeout_s: float = 300.0
    """A collective or message that takes longer is an error, in every process group. Keep it above the slowest step
    plus a checkpoint."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    rendezvous: str = "env"
    """Rendezvous of the ranks: env, the launcher's endpoint, or redis://HOST:PORT/DB. Not the checkpoint store."""


@dataclass(frozen=True, slots=True)
class TransportConfig:
    """Timeouts of the network layers, with parallel.timeout_s: see transport.py for their order. And which network
    process groups go through."""

    flap_s: float = 5.0
    """The longest link outage without a timeout."""
    ib_timeout: int = 20
    """NCCL_IB_TIMEOUT: an attempt waits 4.096 us x 2^this. 20 is the default of recent NCCL; with 7 retries, 30 s."""
    ib_retries: int = 7
    """NCCL_IB_RETRY_CNT, 0 to 7."""
    driver_s: float = 0.0
    """Step timeout of an external watchdog; 0: no watchdog with a fixed timeout, as with Holdfast."""
    networks: Literal["one", "by-nic"] = "one"
    """by-nic: each process group by the NICs of its members, for nodes with unlike types (Holmes): TCP where types
    meet, what NCCL has otherwise. one: NCCL chooses for all alike, and fails between InfiniBand and RoCE."""
    within: str = ""
    """With by-nic: the interface of gloo's groups within one type of NIC. Several with commas between: the first that
    the host has. Empty: as for groups across types."""
    across: str = ""
    """With by-nic: the interface of all other groups, of gloo and of NCCL's TCP, which all hosts reach each other by;
    as `within`. GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME in the environment come first. Empty: theirs."""


@dataclass(frozen=True, slots=True)
class OptimConfig:
    """The optimizer."""

    name: str = field(default="adamw", metadata={"choices": OPTIMIZERS})
    """lamb scales each tensor's change by the tensor's norm, for batches that adamw cannot use. dp-kfac multiplies
    matrices' gradients with the inverse of their curvature (DP-KFAC)."""
    state: Literal["device", "host"] = "device"
    """Where averages and float32 copies of bfloat16 parameters are. host: in host memory; a bucket at a time is copied
    to the device and updated there (adamw, sgd). Results are the same, bit for bit; a step copies all both ways."""
    bucket: int = 16_000_000
    """With state = host: elements that fit on the device, in two halves: one is copied while the other is updated.
    Higher takes more device memory, lower makes more and shorter copies. 128 or more."""
    reduce_pieces: int = 0
    """With state = host and parallel.zero = 0: replicas sum gradients in pieces of this many buckets, and a bucket is
    updated when its own have come, while the next ones are on their way (AxoNN). 0: the update begins when all have
    come. It needs clip_norm = 0 and train.on_nonfinite = stop: what decides on the update must not come last."""
    lr: float = 3e-3
    beta1: float = 0.9
    beta2: float = 0.95
    momentum: float = 0.9
    """For sgd, and behind dp-kfac."""
    eps: float = 1e-8
    weight_decay: float = 0.1
    """Applied to matrices only."""
    clip_norm: float = 1.0
    """Scale gradients down to this norm over all ranks; 0: never."""
    warmup_steps: int = 10
    """Steps over which the learning rate rises linearly."""
    decay_steps: int = 0
    """Step until which the learning rate then decays; 0: constant. Independent of train.steps, so that a longer run
    repeats the same steps."""
    decay: Literal["cosine", "linear", "constant"] = "cosine"
    """Shape of the decay."""
    final_lr: float = 0.1
    """Learning rate after the decay, as a share of lr."""
    trust_low: float = 0.0
    """lamb: lower bound of a tensor's norm; 0: none."""
    trust_high: float = 0.0
    """lamb: upper bound of a tensor's norm; 0: none."""
    damping: float = 0.003
    """dp-kfac: added to the curvature before it is inverted. Higher is closer to sgd, with a smaller step."""
    kl_clip: float = 0.001
    """dp-kfac: preconditioned gradients are scaled down until their product with the gradients is this over lr^2; 0:
    never."""
    factor_every: int = 1
    """dp-kfac: steps between updates of the factors. More save their products, and follow the curvature later."""
    invert_every: int = 10
    """dp-kfac: steps between inversions of the factors."""
    factor_decay: float = 0.95
    """dp-kfac: what remains of a factor when a step's is added to it, 0 to below 1."""
    kfac_form: Literal["inverse", "eigen"] = "inverse"
    """dp-kfac: inverse damps each of a matrix's two factors, eigen their product, which takes longer."""
    kfac_owners: Literal["cost", "round-robin"] = "cost"
    """dp-kfac: which replica has a matrix's factors. cost: all have about as much work. round-robin: in turn."""
    kfac_largest: int = 4096
    """dp-kfac: matrices with a longer side are updated as vectors and embeddings are."""
    kfac_others: Literal["sgd", "adamw"] = "sgd"
    """dp-kfac: what updates vectors, embeddings and large matrices."""
    kfac_others_lr: float = 0.0
    """dp-kfac: lr of those, with the same warmup and decay; 0: lr."""
    kfac_fill: bool = False
    """dp-kfac: build factors and invert them while a pipeline's rank waits for others. Inverses that are not ready in
    time are used from the next step on. Inputs and gradients of matrices are kept until then: more memory."""


@dataclass(frozen=True, slots=True)
class MemoryConfig:
    """Where model data is between its uses: parameters, their gradients, and what the optimizer keeps."""

    policy: Literal["whole", "chunks"] = "whole"
    """whole: all that a rank keeps is on its device. chunks: in chunks of one size, which come to the device when they
    are needed and leave it for others (PatrickStar). For models whose states do not fit; one micro-batch a replica."""
    device_bytes: int = 0
    """With chunks: the most that a rank takes of its device, activations included. On a CPU an arena counts what would
    be there. 0: what a GPU has free at the start; on a CPU no limit."""
    chunk_bytes: int = 0
    """With chunks: bytes of a chunk of parameters. Larger ones are copied faster and fit less well; none is smaller
    than the largest parameter. 0: the size that wastes least of those that fit."""
    evict: Literal["belady", "lru", "fifo"] = "belady"
    """With chunks: which one leaves. belady: the one that is needed last, as the first step has shown; it copies least.
    lru: the one not used for longest. fifo: the one that came first."""


@dataclass(frozen=True, slots=True)
class TrainConfig:
    """The run."""

    steps: int = 100
    seed: int = 0
    """Determines initial weights, data order and dropout."""
    micro_batches: int = 8
    """Micro-batches in a step over all replicas; dp divides this."""
    micro_batch_size: int = 2
    """Samples in a micro-batch."""
    start_from: str = ""
    """Folder of a Hugging Face Llama with the initial weights, used without a checkpoint; empty: random weights from
    the seed."""
    dtype: Literal["float32", "bfloat16", "float64"] = "float32"
    """Type of parameters and activations. With bfloat16 the optimizer keeps float32 parameters. float64: for checks."""
    recompute: str = "none"
    """Activations that backward recomputes: none, selective (attention and the non-linearity), full (whole layers, of
    which each keeps its input) or cell (whole stages, of which each keeps its input); one value for all stages, or one
    for each: `full,none`. stage-aware: each stage as many layers as makes all ranks hold equally many bytes."""
    activations: Literal["device", "host"] = "device"
    """Where what layers save for backward is until then. host: on the device as much as activation_bytes, the rest in
    host memory: what backward needs last leaves first. Losses are the same, bit for bit."""
    activation_bytes: int = 0
    """With activations = host: bytes of them on each rank's device at most."""
    on_nonfinite: Literal["stop", "skip"] = "stop"
    """A step whose loss or gradients are not finite ends the run, or is skipped."""
    max_skips: int = 10
    """With skip: skipped steps in a row that end the run."""
    log_every: int = 1
    """Steps between log lines; 0: none."""
    deterministic: bool = True
    """On a GPU, use deterministic algorithms only; slower, and an error if there is none. CPU algorithms are always
    deterministic: `MKL_CBWR=AUTO` is set unless the environment has a value."""
    gc_every: int = 50
    """Steps between runs of the garbage collector, at the same step on all ranks; 0: Python decides."""
    metrics_path: str = ""
    """File for one JSON line per step."""
    memory_path: str = ""
    """File for what ranks hold by kind, expected and measured, as JSON: see docs/memory.md. Measuring slows the first
    two steps. Empty: nothing is measured."""
    tensorboard_dir: str = ""
    """Folder for TensorBoard files; needs the package `tensorboard`."""


@dataclass(frozen=True, slots=True)
class CheckpointConfig:
    """Checkpoints and snapshots."""

    store: str = ""
    """URL: file:///path, hdfs://host:port/path or webhdfs://host:port/path; empty: no checkpoints."""
    every: int = 50
    """Steps between checkpoints; 0: only at the end."""
    keep: int = 3
    """Newest checkpoints to keep in the store, besides protected ones."""
    keep_every: int = 0
    """Checkpoints after a multiple of this many steps are kept forever; 0: none."""
    timeout_s: float = 30.0
    """Time for which a network store is retried before a save fails; training waits meanwhile."""
    max_mb_per_s: float = 0.0
    """Write limit of one rank to the store, in 10^6 bytes per second; 0: no limit."""
    mirrors: tuple[str, ...] = ()
    """URLs of external copies of the store, to read parts that are corrupt in the store."""
    restore: bool = True
    """Resume from the newest checkpoint or snapshot if there is one."""
    every_s: float = 0.0
    """Seconds between checkpoints, in addition to `every`; 0: none. Needs the agent's checkpoint daemon."""
    snapshot_every: int = 1
    """Steps between snapshots in the node's memory, if there is an agent; 0: none."""
    slots: int = 3
    """Snapshots that fit in memory: 2, or 3 to upload one while two alternate."""
    peers: bool = True
    """Copy each snapshot to another node, on another switch if there is one."""


@dataclass(frozen=True, slots=True)
class PlannedConfig:
    """What `holdfast plan -o` says that a step takes, beside which the controller shows what it takes. Changes nothing
    about the run, and counts only for the settings and the GPU that it was worked out for."""

    step_s: float = 0.0
    """Seconds of a step; 0: nothing was planned."""
    forward_s: tuple[float, ...] = ()
    """By stage, seconds of one micro-batch without collectives of tensor parallelism."""
    backward_s: tuple[float, ...] = ()
    """The same of its backward, with what is recomputed."""
    tensor_s: tuple[float, ...] = ()
    """By stage, seconds of tensor parallelism's collectives for one micro-batch, both ways."""
    message_s: float = 0.0
    """Seconds of a message from stage to stage."""
    replicas_s: tuple[float, ...] = ()
    """By pipeline rank, seconds of a step for gathering parameters and reducing gradients, hidden or not."""
    optimizer_s: tuple[float, ...] = ()
    """By pipeline rank, seconds of the update."""
    gpu: str = ""
    """Of the cluster that it was worked out for."""
    settings: str = ""
    """A hash of the settings that it was worked out for."""


@dataclass(frozen=True, slots=True)
class Config:
    """All settings of a run."""

    model: ModelConfig = field(default_factory=ModelConfig)
    module: ModuleConfig = field(default_factory=ModuleConfig)
    data: DataConfig = field(default_factory=DataConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    transport: TransportConfig = field(default_factory=TransportConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    memory: MemoryConfig = field(default_factory=MemoryConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    planned: PlannedConfig = field(default_factory=PlannedConfig)

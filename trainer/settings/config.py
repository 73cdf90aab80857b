"""The trainer's settings: frozen dataclasses with their defaults."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from holdfast.trainer.schedules.table import SCHEDULES


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The transformer's shape."""

    layers: int = 4
    d_model: int = 128
    """Width of the residual stream; a multiple of 2 x heads, since rotary position needs even heads."""
    heads: int = 8
    """Attention heads; tensor parallelism deals out whole heads, so tp divides this."""
    kv_heads: int = 0
    """Key-value heads, each shared by heads / kv_heads query heads; tp divides this. 0: one a head."""
    ffn_mult: int = 4
    """Width of the feed-forward layer, in units of d_model."""
    ffn_width: int = 0
    """The same as a number, a multiple of the key-value heads; 0: ffn_mult x d_model."""
    block: Literal["parallel", "serial"] = "parallel"
    """parallel: attention and feed-forward read the same input, half the tensor-parallel collectives."""
    norm: Literal["rms", "layer"] = "rms"
    """rms: scale only, as in Llama. layer: mean, scale and bias, as in GPT."""
    norm_eps: float = 1e-5
    positions: Literal["rope", "learned"] = "rope"
    """rope: queries and keys are turned by their position. learned: a vector for each of seq_len positions."""
    rope_theta: float = 10000.0
    """Longest wavelength of rope, in units of 2 pi positions. More: for longer samples."""
    mlp: Literal["gelu", "swiglu"] = "gelu"
    """swiglu has three matrices instead of two: for as many parameters, take 2/3 of the width."""
    window: int = 0
    """Each position sees itself and the window - 1 before it; 0: all before it."""
    tied: bool = False
    """The head uses the embedding's table instead of one of its own."""
    dropout: float = 0.0
    """Share of activations dropped, 0 to below 1."""
    init_std: float = 0.02


@dataclass(frozen=True, slots=True)
class DataConfig:
    """Where text comes from, and how it is cut."""

    path: str = ""
    """Folder of text files; `hf:PATH`: a Hugging Face dataset on this machine, as a folder or file; empty: the sources
    of Python's standard library."""
    column: str = "text"
    """Of a dataset: the column to read."""
    suffixes: tuple[str, ...] = ()
    """Read only files that end so; empty: every file (for the standard library: .py)."""
    tokenizer: str = "bytes"
    """`bytes`, or `bpe:N` to train a byte-pair vocabulary of N tokens on this very text."""
    seq_len: int = 64
    """Tokens in one sample."""
    max_bytes: int = 16 << 20
    """Stop reading after so much text. More: longer to prepare, once."""
    cache_dir: str = ""
    """Where tokenised text is kept; empty: the user's cache folder."""
    loader: Literal["inline", "shared"] = "inline"
    """Who reads: every rank for itself, or one process for all ranks of a node, through shared memory."""
    prefetch: int = 0
    """Steps to read ahead, by a thread of the rank or by the shared loader (which is always 1 ahead or more)."""


@dataclass(frozen=True, slots=True)
class ParallelConfig:
    """How the job is laid over the ranks. pp x dp x tp is the world size."""

    pp: int = 1
    """Pipeline stages in a row."""
    dp: int = 0
    """Replicas, each with its share of the batch; 0: world size / (pp x tp)."""
    tp: int = 1
    """Ranks that share every layer."""
    schedule: str = field(default="1f1b", metadata={"choices": SCHEDULES})
    """In which order micro-batches go through the stages: docs/trainer.md compares them."""
    chunks: int = 0
    """Pieces of the model on each rank; 0: as many as the schedule has by default, see docs/trainer.md."""
    shard_vocabulary: bool = False
    """Split embedding and output layer over tp too: less memory, three more collectives a micro-batch."""
    sequence: bool = False
    """Between matrices, each tp rank holds its share of the positions only: activations need 1/tp of the
    memory and as many bytes on the wire. Not faster between processes of one host."""
    overlap_chunks: int = 1
    """Pieces of the sequence for each matrix of a layer, one on the wire while another is multiplied. Halves the
    waiting on a slow link (4 of them at 1 Gbit/s); gains little between processes that share their host's cores."""
    zero: int = 1
    """What replicas share out among themselves instead of keeping it d times (ZeRO): 0 nothing, 1 what the optimizer
    keeps, 2 gradients too, 3 parameters too. More saves memory; from 2 on every micro-batch adds traffic."""
    zero_unit: Literal["layer", "stage"] = "layer"
    """Of zero = 3: what is gathered, used and freed at once. stage: once for all micro-batches that go through a stage
    in a row, as bfs has them do; needs two stages a rank."""
    zero_reduce: Literal["each", "last"] = "each"
    """Of zero = 3 by layer: add gradients up over replicas after each micro-batch, or once after the last. last sends
    less with several micro-batches, and holds whole gradients until then."""
    timeout_s: float = 300.0
    """A collective that takes longer is an error. Keep above the slowest step plus a checkpoint."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    rendezvous: str = "env"
    """Where ranks meet: env, the store that the launcher names, or redis://HOST:PORT/DB. Not where checkpoints go."""


@dataclass(frozen=True, slots=True)
class TransportConfig:
    """How long the network's layers wait, parallel.timeout_s among them: see transport.py for their order."""

    flap_s: float = 5.0
    """The longest time for which a link may be gone without anybody giving up."""
    ib_timeout: int = 20
    """NCCL_IB_TIMEOUT: a try waits 4.096 us x 2^this. 20 is NCCL's own of late; with 7 retries, 30 s."""
    ib_retries: int = 7
    """NCCL_IB_RETRY_CNT, 0 to 7."""
    driver_s: float = 0.0
    """When whoever watches the job from outside gives up on a step; 0: never by the clock alone, as Holdfast."""


@dataclass(frozen=True, slots=True)
class OptimConfig:
    """How parameters change in a step."""

    name: Literal["adamw", "lamb", "sgd"] = "adamw"
    """lamb scales each tensor's change by the tensor's norm, for batches that adamw cannot use."""
    lr: float = 3e-3
    beta1: float = 0.9
    beta2: float = 0.95
    momentum: float = 0.9
    """Of sgd."""
    eps: float = 1e-8
    weight_decay: float = 0.1
    """On matrices only."""
    clip_norm: float = 1.0
    """Scale gradients down to this norm over all ranks; 0: never."""
    warmup_steps: int = 10
    """Learning rate rises linearly over so many steps."""
    decay_steps: int = 0
    """Then falls until this step; 0: stays. Not tied to train.steps, so that going on for longer repeats
    the same steps."""
    decay: Literal["cosine", "linear", "constant"] = "cosine"
    """The way in which it falls."""
    final_lr: float = 0.1
    """What is left of it then, as a share of lr."""
    trust_low: float = 0.0
    """lamb counts a tensor's norm as at least so much; 0: no bound."""
    trust_high: float = 0.0
    """And as at most so much; 0: no bound."""


@dataclass(frozen=True, slots=True)
class TrainConfig:
    """The run."""

    steps: int = 100
    seed: int = 0
    """Initial weights, data order and dropout all follow from it."""
    micro_batches: int = 8
    """Micro-batches in a step over all replicas; dp divides this."""
    micro_batch_size: int = 2
    """Samples in a micro-batch."""
    start_from: str = ""
    """Folder of a Hugging Face Llama whose weights are the first, where no checkpoint is found; empty: weights
    are drawn from the seed."""
    dtype: Literal["float32", "bfloat16", "float64"] = "float32"
    """Of parameters and activations. With bfloat16 the optimizer keeps float32 parameters of its own.
    float64 is for checks."""
    recompute: str = "none"
    """What backward computes again instead of keeping: none, selective (attention and the non-linearity)
    or full (whole layers); one for all stages, or one for each: `full,none`."""
    on_nonfinite: Literal["stop", "skip"] = "stop"
    """A step whose loss or gradients are not finite ends the run, or is left out and training goes on."""
    max_skips: int = 10
    """With skip: so many such steps in a row end the run all the same."""
    log_every: int = 1
    """Steps between log lines; 0: none."""
    deterministic: bool = True
    """On a GPU, only algorithms that always give the same bits; slower, and an error where there is none. The CPU's all
    do."""
    gc_every: int = 50
    """Steps between collections of Python's garbage, on all ranks between the same two; 0: whenever Python likes."""
    metrics_path: str = ""
    """Append one JSON line a step here."""
    tensorboard_dir: str = ""
    """Write TensorBoard's files here; needs the package `tensorboard`."""


@dataclass(frozen=True, slots=True)
class CheckpointConfig:
    """Where the state goes, and when."""

    store: str = ""
    """URL: file:///path, hdfs://host:port/path or webhdfs://host:port/path; empty: no checkpoints."""
    every: int = 50
    """Steps between checkpoints; 0: only at the end."""
    keep: int = 3
    """How many of the newest remain in the store, besides protected ones."""
    keep_every: int = 0
    """Checkpoints after a multiple of so many steps remain for good; 0: none."""
    timeout_s: float = 30.0
    """How long a store behind a network may fail before a save counts as failed; training waits for it meanwhile."""
    max_mb_per_s: float = 0.0
    """What one rank writes to the store at most, in 10^6 bytes a second; 0: as fast as it goes."""
    mirrors: tuple[str, ...] = ()
    """URLs of copies of the store, made by others: what is corrupt in the store is read from there."""
    restore: bool = True
    """Go on from the newest checkpoint or snapshot if there is one."""
    every_s: float = 0.0
    """Seconds between checkpoints, beside those that steps ask for; 0: none. Needs the agent's checkpoint daemon."""
    snapshot_every: int = 1
    """Steps between snapshots in the node's memory, where an agent keeps them; 0: none."""
    slots: int = 3
    """Snapshots that fit in memory: 2, or 3 so that one can be uploaded while two take turns."""
    peers: bool = True
    """Copy each snapshot to another node, on another switch where there is one."""


@dataclass(frozen=True, slots=True)
class Config:
    """All settings of a run."""

    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    transport: TransportConfig = field(default_factory=TransportConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)

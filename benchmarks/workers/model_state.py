"""The state of a transformer under AdamW, by name and shape: what the systems of `checkpoint.py` save. No torch."""

from collections.abc import Iterator

VOCABULARY = 16_384
Shape = tuple[int, ...]


def parameters(size_mb: float) -> dict[str, Shape]:
    """Parameters of a decoder whose float32 state, two moments of AdamW included, is `size_mb` MB or a little more."""
    width = 768 if size_mb >= 300 else 256
    inner, wanted = width * 8 // 3, size_mb * 1e6 / 12
    found: dict[str, Shape] = {"embedding.weight": (VOCABULARY, width), "norm.weight": (width,)}
    count, layer = sum(map(_elements, found.values())), 0
    while count < wanted or not layer:
        more = dict(_layer(f"layers.{layer}", width, inner))
        found |= more
        count += sum(map(_elements, more.values()))
        layer += 1
    return found


def tensors(size_mb: float) -> dict[str, Shape]:
    """The whole state, all of it float32: for each parameter itself, two moments and the count of its steps."""
    found: dict[str, Shape] = {}
    for name, shape in parameters(size_mb).items():
        found |= {f"model.{name}": shape, f"optimizer.{name}.exp_avg": shape, f"optimizer.{name}.exp_avg_sq": shape}
        found[f"optimizer.{name}.step"] = ()
    return found


def num_bytes(size_mb: float) -> int:
    return 4 * sum(map(_elements, tensors(size_mb).values()))


def _layer(prefix: str, width: int, inner: int) -> Iterator[tuple[str, Shape]]:
    for name in ("query", "key", "value", "output"):
        yield f"{prefix}.attention.{name}.weight", (width, width)
        yield f"{prefix}.attention.{name}.bias", (width,)
    yield f"{prefix}.mlp.gate.weight", (inner, width)
    yield f"{prefix}.mlp.up.weight", (inner, width)
    yield f"{prefix}.mlp.down.weight", (width, inner)
    yield f"{prefix}.norm1.weight", (width,)
    yield f"{prefix}.norm2.weight", (width,)


def _elements(shape: Shape) -> int:
    count = 1
    for size in shape:
        count *= size
    return count

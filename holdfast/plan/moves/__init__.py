"""Moving tensors from one layout to another: what moves, from whom, in which order, and how long it takes."""

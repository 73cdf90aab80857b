"""Jobs that share GPUs by the parts of their iterations (JigSaw): what starts where, and the simulator of it."""

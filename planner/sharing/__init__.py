"""Jobs that share GPUs by the parts of their iterations (JigSaw): what starts where, simulated by the same decisions."""

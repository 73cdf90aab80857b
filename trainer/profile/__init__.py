"""What a model and a machine take, measured for the planner: seconds of layers, seconds of collectives."""

"""The model's graph as planners see it, and plans of the planner as settings of the trainer."""

"""What a job is started with: torchrun's options, the environment, modules, and the checks before anything starts."""

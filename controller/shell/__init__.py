"""The thin shell around the brain: streams of agents in, commands out, views of what is known."""

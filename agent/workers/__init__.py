"""The workers of this node: started, stopped and watched on command."""

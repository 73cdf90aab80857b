"""Which rank is slow itself, which only waits, and what it costs."""

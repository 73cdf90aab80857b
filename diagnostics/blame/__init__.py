"""Who is slow itself, who only waits, and what it costs."""

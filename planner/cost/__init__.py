"""What a layout costs on a cluster: computation, transfers, memory, bytes by link."""

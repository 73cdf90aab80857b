"""To and from other formats: torch's DCP, and tensors made elsewhere."""

"""Which ranks may be slow themselves: what each took, beside its peers."""

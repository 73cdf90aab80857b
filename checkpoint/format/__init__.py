"""What a checkpoint is made of: tensors as tiles, parts with checksums, and the manifest over them."""

"""The settings of each part of Holdfast: one class a section of `holdfast.toml`."""

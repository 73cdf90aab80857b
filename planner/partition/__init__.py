"""Where a model is cut: operators over the devices of a stage, layers over stages."""

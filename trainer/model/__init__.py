"""The transformer, cut into stages and split over ranks."""

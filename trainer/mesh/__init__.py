"""A rank's place among the others, where ranks meet, and the collectives between them."""

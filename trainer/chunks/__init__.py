"""Model data in chunks of one size that move between device and host (PatrickStar, Fang et al., TPDS 2022)."""

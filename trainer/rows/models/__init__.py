"""C9a: modules of six kinds, cut into stages and put together again."""

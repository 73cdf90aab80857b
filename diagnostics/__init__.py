"""Checks that a node runs on itself or with its neighbours, and pure judgement of what they measured.

Pure, and all that a controller may import: busbw, catalog, isolation, results, verdicts. The rest measures, in a
process of its own: `python -m holdfast.diagnostics CHECK…`.
"""

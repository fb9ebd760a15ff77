"""Numbers from records: summaries, pivots, the printed tables beside ours, and the drawing primitives."""

"""Networks: where to cut them, how they normalise, and where to get them."""

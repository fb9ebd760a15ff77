"""The benchmark: plans become cells, cells become records, records become reports and the paper's tables."""

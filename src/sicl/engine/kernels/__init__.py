"""Kernels with a fused end: the vendors' own, and a few in Triton."""

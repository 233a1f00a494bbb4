"""Hand-written kernels (``cuda/*.cu``, ``cpu/*.cpp``, ``aten/*.cpp``) and the one loader that builds them."""

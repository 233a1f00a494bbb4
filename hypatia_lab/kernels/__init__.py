"""Hand-written kernels, a folder an operation, with how they are launched; and the one loader that builds them."""

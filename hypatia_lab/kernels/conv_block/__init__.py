"""The convolution block in kernels written by hand, and how they are launched; modules in Triton need its package."""

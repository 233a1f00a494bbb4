"""Many GPUs, one job a GPU: a folder of files that says what is asked, how each job stands and what it measured."""

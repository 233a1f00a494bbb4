"""The command ``hypatia-lab``."""

"""Contributed records: what a stranger measured, packed for a pull request and checked before it is taken.

``packing.pack`` makes a folder of one machine's records; ``checking.check`` tells every fault of such a folder.
"""

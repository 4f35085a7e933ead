"""The runs of a folder: an index of their files, and a server that shows each of them."""

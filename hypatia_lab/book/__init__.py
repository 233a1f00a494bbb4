"""The book: built from notebooks and records, and begun for a kernel of the reader's own."""

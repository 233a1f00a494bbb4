"""What the records say, chapter by chapter: the findings, tables and claims of each page."""

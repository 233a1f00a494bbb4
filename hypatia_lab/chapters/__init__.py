"""What the pages of the book say of the records: findings, tables and rows of figures, a module or more a page.

Every measured figure is taken from the records when a page is made. What a machine has not measured is left out: such a
function returns None, an empty list or an empty text.
"""

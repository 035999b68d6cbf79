"""Pages that explain themselves, each a single HTML file with text, tables and plots.

They hold no script and fetch nothing: a page opens from a disk, from an archive or in a mail, and
can be sent on safely.

page      the page, and the blocks that it is made of
drawing   plots, as markup
format    numbers as people read them
"""

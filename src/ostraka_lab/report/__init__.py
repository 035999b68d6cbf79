"""One page that explains itself: key figures, text, tables and plots in a single HTML file.

No script and nothing from elsewhere: it opens from a disk, from an archive or in a mail, today and
in ten years, and can be sent on without a second thought.

html     text and elements, escaped
style    colours and type
svg      a matplotlib figure as markup
axes     marks and legends
shapes   many rectangles as one path
blocks   what a section is made of
page     the page
"""

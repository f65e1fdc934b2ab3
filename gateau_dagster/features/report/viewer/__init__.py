"""Build the viewer of all samples: a page, and next to it the data that it loads as needed."""

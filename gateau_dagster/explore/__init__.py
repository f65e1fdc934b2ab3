"""The viewer of all samples: a page, and beside it the data that it loads as needed."""

"""Make the projects, models and servers that tests of several folders share."""

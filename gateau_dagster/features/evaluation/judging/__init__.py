"""Judging of answers: the requests, the replies, and their cost."""

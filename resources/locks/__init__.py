"""Locks: one file each; how two refreshes of one configuration are kept apart."""

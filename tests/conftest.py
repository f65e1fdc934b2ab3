"""For all tests: no time limit an example, since the cores are shared."""

from hypothesis import settings

settings.register_profile("shared-cores", deadline=None)
settings.load_profile("shared-cores")

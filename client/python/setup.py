"""Says that the wheel is not pure: its module is there already."""

from setuptools import Distribution, setup


class BuiltDistribution(Distribution):
    """A distribution of one Python and one platform."""

    def has_ext_modules(self):
        return True


setup(distclass=BuiltDistribution)

"""The version of the distribution; read by the build and sent in `pointsman-sdk`."""

__version__ = "0.1.0"

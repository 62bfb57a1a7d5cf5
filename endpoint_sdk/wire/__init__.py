"""The contract between dispatcher, publishers and executors: messages, identifiers, limits and signatures.

Pure: the standard library and msgspec only, no I/O, no clock of its own.
"""

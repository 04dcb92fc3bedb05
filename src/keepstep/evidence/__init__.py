"""Evidence: logs, dumps and reports as other programs write them, read into observations.

Pure: bytes in, observations out. Reads no file, opens no socket, and never trusts what it reads: a hostile file costs bounded
memory and runs nothing.
"""

"""The routes under /api/v1: questions of the read side and requests of people, as HTTP. Judges nothing itself."""

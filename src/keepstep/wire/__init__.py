"""What the programs say to each other: messages, frames, environment variables and the progress cell."""

"""Read conversations with several turns or tools, and the session files of coding agents."""

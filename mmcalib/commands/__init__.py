"""What each tool does, in a file or a folder of the tool's name."""
